#include "backend.hpp"

#include <kvbound/reference/core/error.hpp>
#include <kvbound/reference/session.hpp>

namespace kvbound::sim {

void require_backend(std::string_view name) {
  if (name != "reference") {
    throw InvalidPolicy("no backend '" + std::string(name) + "'; known backends: reference");
  }
}

std::unique_ptr<Session> open_session(std::string_view backend) {
  require_backend(backend);
  return reference::make_session();
}

}  // namespace kvbound::sim
