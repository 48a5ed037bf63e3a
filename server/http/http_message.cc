#include "server/http/http_message.h"

#include <algorithm>

#include "base/index.h"

namespace quire {
namespace {

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

int hex_value(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

Status parse_query(std::string_view text, HttpRequest& request) {
  while (!text.empty()) {
    const auto end = std::min(text.find('&'), text.size());
    const auto piece = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (piece.empty()) continue;
    const auto eq = std::min(piece.find('='), piece.size());
    QUIRE_ASSIGN_OR_RETURN(auto name, percent_decode(piece.substr(0, eq), PlusSign::kSpace));
    QUIRE_ASSIGN_OR_RETURN(
        auto value, percent_decode(eq < piece.size() ? piece.substr(eq + 1) : std::string_view{},
                                   PlusSign::kSpace));
    request.query.emplace_back(std::move(name), std::move(value));
  }
  return {};
}

}  // namespace

std::string_view trim(std::string_view s) {
  while (!s.empty() && (s.front() == ' ' || s.front() == '\t')) s.remove_prefix(1);
  while (!s.empty() && (s.back() == ' ' || s.back() == '\t')) s.remove_suffix(1);
  return s;
}

bool iequals(std::string_view a, std::string_view b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](char x, char y) { return lower(x) == lower(y); });
}

void Headers::set(std::string_view name, std::string value) {
  std::erase_if(fields_, [&](const auto& f) { return iequals(f.first, name); });
  fields_.emplace_back(std::string(name), std::move(value));
}

const std::string* Headers::find(std::string_view name) const {
  for (const auto& [n, v] : fields_)
    if (iequals(n, name)) return &v;
  return nullptr;
}

std::string_view Headers::get(std::string_view name, std::string_view otherwise) const {
  const auto* v = find(name);
  return v ? std::string_view(*v) : otherwise;
}

std::size_t Headers::count(std::string_view name) const {
  return to_size(std::count_if(fields_.begin(), fields_.end(),
                               [&](const auto& f) { return iequals(f.first, name); }));
}

const std::string* HttpRequest::param(std::string_view name) const {
  for (const auto& [n, v] : query)
    if (n == name) return &v;
  return nullptr;
}

std::string HttpRequest::path_text() const {
  std::string out;
  for (const auto& s : path) out.append("/").append(s);
  return out.empty() ? "/" : out;
}

std::string HttpRequest::media_type() const {
  std::string_view v = headers.get("content-type");
  v = trim(v.substr(0, std::min(v.find(';'), v.size())));
  std::string out(v);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

Result<std::string> percent_decode(std::string_view text, PlusSign plus) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '%') {
      const int hi = i + 2 < text.size() ? hex_value(text[i + 1]) : -1;
      const int lo = i + 2 < text.size() ? hex_value(text[i + 2]) : -1;
      if (hi < 0 || lo < 0)
        return Status::invalid(
            "target", "'%' in the request target is not followed by two hex digits; write %25");
      out.push_back(static_cast<char>(hi * 16 + lo));
      i += 2;
    } else {
      out.push_back(c == '+' && plus == PlusSign::kSpace ? ' ' : c);
    }
  }
  if (out.find('\0') != std::string::npos)
    return Status::invalid("target", "the request target holds a NUL character");
  if (invalid_utf8_at(out))
    return Status::invalid("target",
                           "the request target is not valid UTF-8 after percent-decoding");
  return out;
}

std::string percent_encode(std::string_view text) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const char c : text) {
    const auto u = static_cast<unsigned char>(c);
    const bool plain = (c >= '0' && c <= '9') || (lower(c) >= 'a' && lower(c) <= 'z') || c == '-' ||
                       c == '.' || c == '_' || c == '~';
    if (plain) {
      out.push_back(c);
    } else {
      out.push_back('%');
      out.push_back(kHex[u >> 4]);
      out.push_back(kHex[u & 15]);
    }
  }
  return out;
}

Status parse_target(std::string_view target, HttpRequest& request) {
  request.path.clear();
  request.query.clear();
  if (target == "*") {  // of the server as a whole: no resource
    request.path.emplace_back("*");
    return {};
  }
  for (const std::string_view scheme : {"http://", "https://"}) {
    if (target.size() > scheme.size() && iequals(target.substr(0, scheme.size()), scheme)) {
      const auto slash = target.find('/', scheme.size());
      target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
      break;
    }
  }
  if (target.empty() || target.front() != '/')
    return Status::invalid("target", "the request target must begin with '/'");
  target = target.substr(0, std::min(target.find('#'), target.size()));
  const auto mark = std::min(target.find('?'), target.size());
  if (mark < target.size()) QUIRE_RETURN_IF_ERROR(parse_query(target.substr(mark + 1), request));
  std::string_view path = target.substr(1, mark - 1);
  while (!path.empty()) {
    const auto end = std::min(path.find('/'), path.size());
    QUIRE_ASSIGN_OR_RETURN(auto segment, percent_decode(path.substr(0, end), PlusSign::kLiteral));
    request.path.push_back(std::move(segment));
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return {};
}

std::optional<std::size_t> invalid_utf8_at(std::string_view text) {
  const auto* p = reinterpret_cast<const unsigned char*>(text.data());
  const std::size_t n = text.size();
  std::size_t i = 0;
  while (i < n) {
    const unsigned c = p[i];
    if (c < 0x80) {
      ++i;
      continue;
    }
    std::size_t len = 0;
    // Bounds of the second byte: no overlong forms, surrogates or values past U+10FFFF.
    unsigned low = 0x80, high = 0xbf;
    if (c >= 0xc2 && c <= 0xdf)
      len = 2;
    else if (c >= 0xe0 && c <= 0xef) {
      len = 3;
      if (c == 0xe0) low = 0xa0;
      if (c == 0xed) high = 0x9f;
    } else if (c >= 0xf0 && c <= 0xf4) {
      len = 4;
      if (c == 0xf0) low = 0x90;
      if (c == 0xf4) high = 0x8f;
    }
    if (len == 0 || n - i < len || p[i + 1] < low || p[i + 1] > high) return i;
    for (std::size_t k = 2; k < len; ++k)
      if ((p[i + k] & 0xc0u) != 0x80) return i;
    i += len;
  }
  return std::nullopt;
}

std::optional<std::string> header_parameter(std::string_view value, std::string_view name) {
  std::size_t i = value.find(';');
  while (i != std::string_view::npos && i < value.size()) {
    ++i;
    const auto eq = value.find('=', i);
    if (eq == std::string_view::npos) return std::nullopt;
    const auto key = trim(value.substr(i, eq - i));
    std::string parsed;
    std::size_t k = eq + 1;
    while (k < value.size() && value[k] == ' ') ++k;
    if (k < value.size() && value[k] == '"') {
      for (++k; k < value.size() && value[k] != '"'; ++k) {
        if (value[k] == '\\' && k + 1 < value.size()) ++k;
        parsed.push_back(value[k]);
      }
      i = value.find(';', k);
    } else {
      i = value.find(';', k);
      parsed = std::string(trim(value.substr(k, i == std::string_view::npos ? i : i - k)));
    }
    if (iequals(key, name)) return parsed;
  }
  return std::nullopt;
}

std::string_view reason_phrase(int status) {
  switch (status) {
    case 100:
      return "Continue";
    case 200:
      return "OK";
    case 201:
      return "Created";
    case 202:
      return "Accepted";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 409:
      return "Conflict";
    case 412:
      return "Precondition Failed";
    case 413:
      return "Payload Too Large";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 422:
      return "Unprocessable Entity";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 499:
      return "Client Closed Request";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    case 507:
      return "Insufficient Storage";
    default:
      return "Unknown";
  }
}

}  // namespace quire
