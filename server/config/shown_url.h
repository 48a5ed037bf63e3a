/// This file declares how an address that may hold a password is shown.
#pragma once

#include <string>
#include <string_view>

namespace quire {

/// Returns the address with "***" in the place of each secret: the password in front of a host, and
/// the value of each option whose name says that it is one (`password`, `sentinel_password`,
/// `secret`, `token`, `api-key`, `signature`; over HTTP also `key`). What is no address stays as it
/// is.
std::string url_without_secrets(std::string_view url);

}  // namespace quire
