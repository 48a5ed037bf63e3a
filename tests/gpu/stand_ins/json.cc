// A plain JSON reader behind the stand-in for Boost.JSON.
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace boost::json {
namespace {

constexpr int kDeepest = 64;

class Reader {
 public:
  Reader(string_view text, std::string& duplicate) : text_(text), duplicate_(duplicate) {}
  std::size_t at() const { return at_; }
  const std::string& error() const { return error_; }

  value read(int depth) {
    skip();
    if (depth > kDeepest) return fail("nested too deeply");
    if (at_ >= text_.size()) return fail("incomplete JSON");
    switch (text_[at_]) {
      case '{':
        return read_object(depth);
      case '[':
        return read_array(depth);
      case '"':
        return value(read_string());
      case 't':
        return word("true", value(true));
      case 'f':
        return word("false", value(false));
      case 'n':
        return word("null", value());
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
  value fail(const char* what) {
    if (error_.empty()) error_ = what;
    return value();
  }
  bool take(char c) {
    skip();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  value word(std::string_view name, value v) {
    if (text_.substr(at_, name.size()) != name) return fail("syntax error");
    at_ += name.size();
    return v;
  }
  value read_object(int depth) {
    object out;
    ++at_;
    if (take('}')) return value(std::move(out));
    do {
      skip();
      if (at_ >= text_.size() || text_[at_] != '"') return fail("a key is needed");
      std::string key = read_string();
      if (!take(':')) return fail("a colon is needed");
      value v = read(depth + 1);
      if (!error_.empty()) return v;
      if (duplicate_.empty() && out.contains(key)) duplicate_ = key;
      out.insert(std::move(key), std::move(v));
    } while (take(','));
    return take('}') ? value(std::move(out)) : fail("an object does not end");
  }
  value read_array(int depth) {
    array out;
    ++at_;
    if (take(']')) return value(std::move(out));
    do {
      out.push_back(read(depth + 1));
      if (!error_.empty()) return value();
    } while (take(','));
    return take(']') ? value(std::move(out)) : fail("an array does not end");
  }
  std::string read_string() {
    std::string out;
    for (++at_; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (text_[at_] != '\\') {
        out += text_[at_];
        continue;
      }
      if (++at_ >= text_.size()) break;
      const std::size_t known = std::string_view("bfnrt").find(text_[at_]);
      if (known != std::string_view::npos)
        out += "\b\f\n\r\t"[known];
      else if (text_[at_] == 'u')
        add_code_point(out);
      else
        out += text_[at_];
    }
    if (at_ >= text_.size())
      fail("a string does not end");
    else
      ++at_;
    return out;
  }
  /// Reads \uXXXX, or two of them for a code point above U+FFFF.
  void add_code_point(std::string& out) {
    unsigned c = hex4();
    if (c >= 0xD800 && c < 0xDC00 && text_.substr(at_ + 1, 2) == "\\u") {
      at_ += 2;
      c = 0x10000 + ((c - 0xD800) << 10) + (hex4() - 0xDC00);
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
  }
  unsigned hex4() {
    unsigned c = 0;
    const char* begin = text_.data() + at_ + 1;
    const char* end = text_.data() + std::min(at_ + 5, text_.size());
    if (std::from_chars(begin, end, c, 16).ptr != begin + 4) fail("a broken escape");
    at_ += 4;
    return c;
  }
  value read_number() {
    const std::size_t end = std::min(text_.find_first_not_of("+-0123456789.eE", at_), text_.size());
    const char *first = text_.data() + at_, *last = text_.data() + end;
    std::int64_t whole = 0;
    std::uint64_t large = 0;
    double real = 0;
    value out;
    if (const auto r = std::from_chars(first, last, whole);
        r.ec == std::errc() && r.ptr == last && first < last)
      out = value(whole);
    else if (const auto u = std::from_chars(first, last, large);
             u.ec == std::errc() && u.ptr == last && first < last)
      out = value(large);
    else if (const auto d = std::from_chars(first, last, real);
             d.ec == std::errc() && d.ptr == last && first < last)
      out = value(real);
    else
      return fail("syntax error");
    at_ = end;
    return out;
  }

  const string_view text_;
  std::string& duplicate_;
  std::size_t at_ = 0;
  std::string error_;
};

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) {
      out += c;
    } else {
      char escape[8];
      std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned char>(c));
      out += escape;
    }
  }
  return out + '"';
}

}  // namespace

const value* object::if_contains(string_view key) const {
  for (const key_value_pair& member : members_) {
    if (member.key() == key) return &member.value();
  }
  return nullptr;
}

void object::insert(std::string key, value v) {
  for (key_value_pair& member : members_) {
    if (member.key() == key) return member.set(std::move(v));
  }
  members_.emplace_back(std::move(key), std::move(v));
}

std::size_t read_value(string_view text, value& out, std::string& duplicate, error_code& error) {
  Reader reader(text, duplicate);
  out = reader.read(0);
  reader.skip();
  if (!reader.error().empty()) error = error_code(reader.error());
  return reader.at();
}

value parse(string_view text, error_code& error) {
  value out;
  std::string duplicate;
  if (read_value(text, out, duplicate, error) < text.size() && !error)
    error = error_code("extra data");
  return out;
}

std::string serialize(const value& v) {
  if (v.is_null()) return "null";
  if (v.is_bool()) return v.get_bool() ? "true" : "false";
  if (v.is_int64()) return std::to_string(v.get_int64());
  if (v.is_uint64()) return std::to_string(v.get_uint64());
  if (v.is_double()) return std::to_string(v.get_double());
  if (v.is_string()) return quoted(v.get_string());
  std::string out;
  if (v.is_array()) {
    for (const value& item : v.get_array()) out += (out.empty() ? "" : ",") + serialize(item);
    return "[" + out + "]";
  }
  for (const key_value_pair& member : v.get_object())
    out += (out.empty() ? "" : ",") + quoted(member.key()) + ":" + serialize(member.value());
  return "{" + out + "}";
}

}  // namespace boost::json
