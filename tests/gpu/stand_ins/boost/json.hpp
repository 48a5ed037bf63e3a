/// The part of Boost.JSON with which the engine reads model folders, for machines that have no
/// Boost. The parser is in json/basic_parser_impl.hpp, as Boost's is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace boost::json {

enum class error : unsigned char {
  none,
  syntax,
  extra_data,
  incomplete,
  exponent_overflow,
  too_deep,
  not_number
};

class error_code {
 public:
  error_code() = default;
  error_code(error e) : error_(e) {}  // NOLINT: implicit as Boost's
  explicit operator bool() const { return error_ != error::none; }
  const char* message() const;
  friend bool operator==(const error_code& a, error b) { return a.error_ == b; }

 private:
  error error_ = error::none;
};

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
  using Kinds = std::variant<std::nullptr_t, bool, std::int64_t, std::uint64_t, double, string,
                             array, object>;
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
  T to_number(error_code& ec) const {
    if (is_int64()) return static_cast<T>(get_int64());
    if (is_uint64()) return static_cast<T>(get_uint64());
    ec = error::not_number;
    return 0;
  }

 private:
  template <class T>
  bool is() const {
    return std::holds_alternative<T>(v_);
  }
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

std::string serialize(const value& v);

/// Builds a value from its parts, inner ones first.
class value_stack {
 public:
  void reset() {
    values_.clear();
    keys_.clear();
    chars_.clear();
  }
  value release() { return pop(); }
  void push_chars(string_view part) { chars_ += part; }
  void push_key(string_view end) { keys_.push_back(take_chars(end)); }
  void push_string(string_view end) { values_.emplace_back(take_chars(end)); }
  void push_int64(std::int64_t v) { values_.emplace_back(v); }
  void push_uint64(std::uint64_t v) { values_.emplace_back(v); }
  void push_double(double v) { values_.emplace_back(v); }
  void push_bool(bool v) { values_.emplace_back(v); }
  void push_null() { values_.emplace_back(); }
  /// The last `count` values become one.
  void push_array(std::size_t count);
  void push_object(std::size_t count);

 private:
  std::string take_chars(string_view end) { return std::exchange(chars_, {}) + std::string(end); }
  value pop() {
    value v = std::move(values_.back());
    values_.pop_back();
    return v;
  }

  std::vector<value> values_;
  std::vector<std::string> keys_;
  std::string chars_;
};

struct parse_options {
  std::size_t max_depth = 32;
};

/// Calls its handler for every part of a text, which must be given whole.
template <class Handler>
class basic_parser {
 public:
  explicit basic_parser(const parse_options& options) : options_(options) {}
  Handler& handler() { return handler_; }
  /// Returns the bytes read.
  std::size_t write_some(bool more, const char* text, std::size_t bytes, error_code& ec);

 private:
  const parse_options options_;
  Handler handler_;
};

}  // namespace boost::json
