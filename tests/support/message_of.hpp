// The error message of a call.
#pragma once

#include <exception>
#include <string>
#include <typeinfo>

namespace kvbound::test {

/// The message of the exception, if its type is exactly Expected; otherwise a description
/// of what happened instead.
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
