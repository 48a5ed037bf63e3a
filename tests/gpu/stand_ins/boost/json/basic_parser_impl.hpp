// The parser of the stand-in for Boost.JSON.
#pragma once

#include <algorithm>
#include <boost/json.hpp>
#include <charconv>
#include <limits>

namespace boost::json {

template <class Handler>
class text_reader {
 public:
  text_reader(string_view text, Handler& handler, std::size_t max_depth)
      : text_(text), handler_(handler), max_depth_(max_depth) {}
  std::size_t at() const { return at_; }
  const error_code& failure() const { return error_; }

  /// Reads a value within `depth` others; false: failure() says why not.
  bool read(std::size_t depth) {
    skip();
    if (at_ >= text_.size()) return fail(error::incomplete);
    switch (text_[at_]) {
      case '{':
        return depth < max_depth_ ? read_object(depth + 1) : fail(error::too_deep);
      case '[':
        return depth < max_depth_ ? read_array(depth + 1) : fail(error::too_deep);
      case '"': {
        std::string s;
        return read_string(s) && handler_.on_string(s, s.size(), error_);
      }
      case 't':
        return word("true") && handler_.on_bool(true, error_);
      case 'f':
        return word("false") && handler_.on_bool(false, error_);
      case 'n':
        return word("null") && handler_.on_null(error_);
      default:
        return read_number();
    }
  }
  void skip() {
    while (at_ < text_.size() &&
           std::string_view(" \t\r\n").find(text_[at_]) != std::string_view::npos)
      ++at_;
  }

 private:
  bool fail(error e) {
    error_ = at_ >= text_.size() ? error::incomplete : e;
    return false;
  }
  bool take(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view name) {
    if (text_.substr(at_, name.size()) != name) return fail(error::syntax);
    at_ += name.size();
    return true;
  }
  bool read_object(std::size_t depth) {
    ++at_;
    if (!handler_.on_object_begin(error_)) return false;
    std::size_t count = 0;
    if (take('}')) return handler_.on_object_end(count, error_);
    do {
      skip();
      std::string key;
      if (at_ >= text_.size() || text_[at_] != '"') return fail(error::syntax);
      if (!read_string(key) || !handler_.on_key(key, key.size(), error_)) return false;
      if (!take(':')) return fail(error::syntax);
      if (!read(depth)) return false;
      ++count;
    } while (take(','));
    return take('}') ? handler_.on_object_end(count, error_) : fail(error::syntax);
  }
  bool read_array(std::size_t depth) {
    ++at_;
    if (!handler_.on_array_begin(error_)) return false;
    std::size_t count = 0;
    if (take(']')) return handler_.on_array_end(count, error_);
    do {
      if (!read(depth)) return false;
      ++count;
    } while (take(','));
    return take(']') ? handler_.on_array_end(count, error_) : fail(error::syntax);
  }
  bool read_string(std::string& out) {
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] != '\\') {
        out += text_[at_];
        continue;
      }
      if (++at_ >= text_.size()) break;
      const std::size_t known = std::string_view("bfnrt").find(text_[at_]);
      if (known != std::string_view::npos)
        out += "\b\f\n\r\t"[known];
      else if (text_[at_] != 'u')
        out += text_[at_];
      else if (!add_code_point(out))
        return fail(error::syntax);
    }
    if (at_ >= text_.size()) return fail(error::incomplete);
    ++at_;
    return true;
  }
  /// Reads \uXXXX, or two of them for a code point above U+FFFF.
  bool add_code_point(std::string& out) {
    unsigned c = 0, low = 0;
    if (!hex4(c)) return false;
    if (c >= 0xD800 && c < 0xDC00 && text_.substr(at_ + 1, 2) == "\\u") {
      at_ += 2;
      if (!hex4(low)) return false;
      c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    if (c < 0x80) {
      out += static_cast<char>(c);
    } else if (c < 0x800) {
      out += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      out += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 63)),
              static_cast<char>(0x80 | (c & 63))};
    } else {
      out += {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 63)),
              static_cast<char>(0x80 | (c >> 6 & 63)), static_cast<char>(0x80 | (c & 63))};
    }
    return true;
  }
  bool hex4(unsigned& c) {
    const char* begin = text_.data() + std::min(at_ + 1, text_.size());
    const char* end = text_.data() + std::min(at_ + 5, text_.size());
    if (std::from_chars(begin, end, c, 16).ptr != begin + 4) return false;
    at_ += 4;
    return true;
  }
  bool read_number() {
    const std::size_t end = std::min(text_.find_first_not_of("+-0123456789.eE", at_), text_.size());
    const char *first = text_.data() + at_, *last = text_.data() + end;
    const string_view text = text_.substr(at_, end - at_);
    std::int64_t whole = 0;
    std::uint64_t large = 0;
    double real = 0;
    if (first == last) return fail(error::syntax);
    at_ = end;
    if (const auto r = std::from_chars(first, last, whole); r.ec == std::errc() && r.ptr == last)
      return handler_.on_int64(whole, text, error_);
    if (const auto r = std::from_chars(first, last, large); r.ec == std::errc() && r.ptr == last)
      return handler_.on_uint64(large, text, error_);
    const auto r = std::from_chars(first, last, real);
    if (r.ptr != last) return fail(error::syntax);
    if (r.ec != std::errc()) real = std::numeric_limits<double>::infinity();
    return handler_.on_double(real, text, error_);
  }

  const string_view text_;
  Handler& handler_;
  const std::size_t max_depth_;
  std::size_t at_ = 0;
  error_code error_;
};

template <class Handler>
std::size_t basic_parser<Handler>::write_some(bool, const char* text, std::size_t bytes,
                                              error_code& ec) {
  text_reader<Handler> reader({text, bytes}, handler_, options_.max_depth);
  if (handler_.on_document_begin(ec) && reader.read(0)) {
    reader.skip();
    handler_.on_document_end(ec);
  } else {
    ec = reader.failure();
  }
  return reader.at();
}

}  // namespace boost::json
