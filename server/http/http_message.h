/// A request and a response as plain values, independent of the network library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace quire {

/// Compares ASCII text without case, as for header names and media types.
bool iequals(std::string_view a, std::string_view b);

/// Header fields in order of arrival. Names compare without case.
class Headers {
 public:
  void add(std::string name, std::string value) {
    fields_.emplace_back(std::move(name), std::move(value));
  }
  /// Replaces every field of that name.
  void set(std::string_view name, std::string value);
  /// Returns the first field's value; null: there is none.
  const std::string* find(std::string_view name) const;
  std::string_view get(std::string_view name, std::string_view otherwise = {}) const;
  std::size_t count(std::string_view name) const;
  const std::vector<std::pair<std::string, std::string>>& fields() const { return fields_; }

 private:
  std::vector<std::pair<std::string, std::string>> fields_;
};

struct HttpRequest {
  std::string method;  ///< upper case as sent: GET, POST, ...
  std::string target;  ///< request target, not decoded
  /// percent-decoded segments of an absolute path, valid UTF-8, without an empty last one
  std::vector<std::string> path;
  std::vector<std::pair<std::string, std::string>> query;  ///< decoded name=value pairs in order
  int minor_version = 1;                                   ///< HTTP/1.x
  bool keep_alive = true;
  Headers headers;
  std::string body;  ///< whole, unless a BodySink took it
  std::string peer;  ///< address of the client, without port

  /// Returns the value of a query parameter; null: it is missing.
  const std::string* param(std::string_view name) const;
  /// Returns the path as text, "/v1/documents".
  std::string path_text() const;
  /// Returns Content-Type without parameters, in lower case; empty: it is missing.
  std::string media_type() const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type;  ///< empty: no Content-Type header
  Headers headers;
  std::string body;
};

/// Fills path and query from the target (origin form, absolute form, or `*`). Errors:
/// kInvalidArgument.
Status parse_target(std::string_view target, HttpRequest& request);

/// Decodes percent escapes; with kSpace (query strings) `+` is a space. Errors: kInvalidArgument
/// (bad escape, NUL, invalid UTF-8).
enum class PlusSign : unsigned char { kLiteral, kSpace };
Result<std::string> percent_decode(std::string_view text, PlusSign plus);
/// Escapes everything but unreserved characters.
std::string percent_encode(std::string_view text);

/// Returns the text without spaces and tabs around it.
std::string_view trim(std::string_view text);

/// Returns the byte offset of the first invalid UTF-8 sequence; none: the text is valid.
std::optional<std::size_t> invalid_utf8_at(std::string_view text);

/// Returns "OK", "Not Found", ...
std::string_view reason_phrase(int status);

/// Returns one parameter of a header value, e.g. boundary of `multipart/form-data; boundary="x"`.
std::optional<std::string> header_parameter(std::string_view value, std::string_view name);

}  // namespace quire
