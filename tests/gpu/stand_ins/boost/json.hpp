/// The part of Boost.JSON with which the engine reads model folders, for machines that have no Boost. json.cc is the parser.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace boost::system {

class error_code {
 public:
  error_code() = default;
  explicit error_code(std::string text) : text_(std::move(text)) {}
  explicit operator bool() const { return !text_.empty(); }
  const std::string& message() const { return text_; }

 private:
  std::string text_;  // empty: no error
};

}  // namespace boost::system

namespace boost::json {

using boost::system::error_code;
using string = std::string;
using string_view = std::string_view;
class value;

class array : public std::vector<value> {
 public:
  using std::vector<value>::vector;
};

/// In the order of value's alternatives.
enum class kind : unsigned char { null, bool_, int64, uint64, double_, string, array, object };

class key_value_pair;
/// Members in the order of the text; of a key written twice the last one stays, as in Boost.
class object {
 public:
  std::size_t size() const;
  bool empty() const;
  const value* if_contains(string_view key) const;
  value* if_contains(string_view key) {
    return const_cast<value*>(static_cast<const object*>(this)->if_contains(key));
  }
  bool contains(string_view key) const { return if_contains(key) != nullptr; }
  const key_value_pair* begin() const;
  const key_value_pair* end() const;
  void insert(std::string key, value v);

 private:
  std::vector<key_value_pair> members_;
};

class value {
 public:
  using Kinds = std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, string, array, object>;
  value() : v_(nullptr) {}
  template <class T>
  explicit value(T v) : v_(std::move(v)) {}

  json::kind kind() const { return static_cast<json::kind>(v_.index()); }
  bool is_null() const { return is<std::nullptr_t>(); }
  bool is_bool() const { return is<bool>(); }
  bool is_int64() const { return is<std::int64_t>(); }
  bool is_uint64() const { return is<std::uint64_t>(); }
  bool is_double() const { return is<double>(); }
  bool is_string() const { return is<string>(); }
  bool is_array() const { return is<array>(); }
  bool is_object() const { return is<object>(); }
  bool get_bool() const { return std::get<bool>(v_); }
  std::int64_t get_int64() const { return std::get<std::int64_t>(v_); }
  std::uint64_t get_uint64() const { return std::get<std::uint64_t>(v_); }
  double get_double() const { return std::get<double>(v_); }
  const string& get_string() const { return std::get<string>(v_); }
  const array& get_array() const { return std::get<array>(v_); }
  array& get_array() { return std::get<array>(v_); }
  const object& get_object() const { return std::get<object>(v_); }
  object& get_object() { return std::get<object>(v_); }
  const array* if_array() const { return std::get_if<array>(&v_); }
  const object* if_object() const { return std::get_if<object>(&v_); }
  object* if_object() { return std::get_if<object>(&v_); }
  template <class T>
  T to_number(error_code& error) const {
    if (is_int64()) return static_cast<T>(get_int64());
    if (is_uint64()) return static_cast<T>(get_uint64());
    error = error_code("not a whole number");
    return 0;
  }

 private:
  template <class T>
  bool is() const { return std::holds_alternative<T>(v_); }
  Kinds v_;
};

class key_value_pair {
 public:
  key_value_pair(std::string key, json::value v) : key_(std::move(key)), value_(std::move(v)) {}
  const std::string& key() const { return key_; }
  const json::value& value() const { return value_; }
  void set(json::value v) { value_ = std::move(v); }

 private:
  std::string key_;
  json::value value_;
};

inline std::size_t object::size() const { return members_.size(); }
inline bool object::empty() const { return members_.empty(); }
inline const key_value_pair* object::begin() const { return members_.data(); }
inline const key_value_pair* object::end() const { return members_.data() + members_.size(); }

/// The value at the beginning of the text, and in `duplicate` the first key that an object holds twice. Returns the bytes read, of trailing white space too.
std::size_t read_value(string_view text, value& out, std::string& duplicate, error_code& error);
value parse(string_view text, error_code& error);
std::string serialize(const value& v);

class stream_parser {
 public:
  std::size_t write_some(const char* text, std::size_t bytes, error_code& error) {
    std::string duplicate;
    return read_value({text, bytes}, value_, duplicate, error);
  }
  void finish(error_code&) {}
  value release() { return std::move(value_); }

 private:
  value value_;
};

struct parse_options {};
/// Knows of its handler only what safetensors.cc asks for: the first key that an object holds twice.
template <class Handler>
class basic_parser {
 public:
  explicit basic_parser(const parse_options&) {}
  Handler& handler() { return handler_; }
  void write_some(bool, const char* text, std::size_t bytes, error_code& error) {
    value ignored;
    read_value({text, bytes}, ignored, handler_.duplicate, error);
  }

 private:
  Handler handler_;
};

}  // namespace boost::json
