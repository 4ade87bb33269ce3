// What a call throws.
#pragma once

#include <exception>
#include <string>
#include <typeinfo>

namespace kvbound::test {

/// What an error of exactly this type says; otherwise what happened instead.
template <class Expected, class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const Expected& error) {
    return typeid(error) == typeid(Expected) ? error.what() : "another error";
  } catch (const std::exception& error) {
    return std::string("another error: ") + error.what();
  }
  return "no error";
}

}  // namespace kvbound::test
