#include "engine/jinja/text_methods.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/index.h"
#include "base/utf8.h"
#include "engine/jinja/interpreter.h"

namespace quire::jinja {
namespace {

constexpr std::string_view kMethods[] = {
    "capitalize", "count",      "endswith",   "find",      "format",       "index",
    "isalnum",    "isalpha",    "isdigit",    "islower",   "isspace",      "isupper",
    "join",       "lower",      "lstrip",     "partition", "removeprefix", "removesuffix",
    "replace",    "rfind",      "rpartition", "rsplit",    "rstrip",       "split",
    "splitlines", "startswith", "strip",      "title",     "upper"};

Text text_argument(Arguments& args, std::size_t index, std::string_view name,
                   std::string_view method) {
  const Value v = args.take(index, name);
  if (v.as_text() == nullptr)
    throw Error(std::string(method) + "() needs a text, not a value of type " + v.type_name());
  return *v.as_text();
}

bool is_letter(char32_t c) {
  const auto kind = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
}
bool is_number(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c)) == UTF8PROC_CATEGORY_ND;
}

/// Whether the text is not empty and every character of it is of the kind.
template <class Kind>
bool all_of(const Text& text, const Kind& kind) {
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text.bytes, at);
    if (!kind(c.code_point)) return false;
    at = c.end;
  }
  return !text.empty();
}

/// At white space, from the left; the rest behind the last of `most` cuts keeps its own.
std::vector<Value> split_at_space(const Text& text, std::int64_t most) {
  std::vector<Value> parts;
  std::size_t at = 0;
  const auto skip = [&](bool space) {
    while (at < text.size()) {
      const Character c = character_at(text.bytes, at);
      if (is_space(c.code_point) != space) break;
      at = c.end;
    }
  };
  for (skip(true); at < text.size(); skip(true)) {
    if (most >= 0 && count_of(parts) >= most) {
      parts.emplace_back(text.substr(at));
      break;
    }
    const std::size_t begin = at;
    skip(false);
    parts.emplace_back(text.substr(begin, at - begin));
  }
  return parts;
}

std::vector<Value> split_at(const Text& text, const std::string& separator, std::int64_t most,
                            bool from_right) {
  if (separator.empty()) throw Error("the separator of split() is empty");
  std::vector<std::size_t> cuts;
  if (from_right) {
    std::size_t end = text.size();
    while (most < 0 || count_of(cuts) < most) {
      if (end < separator.size()) break;
      const std::size_t cut = text.bytes.rfind(separator, end - separator.size());
      if (cut == std::string::npos) break;
      cuts.push_back(cut);
      end = cut;
    }
    std::reverse(cuts.begin(), cuts.end());
  } else {
    std::size_t begin = 0;
    while (most < 0 || count_of(cuts) < most) {
      const std::size_t cut = text.bytes.find(separator, begin);
      if (cut == std::string::npos) break;
      cuts.push_back(cut);
      begin = cut + separator.size();
    }
  }
  std::vector<Value> parts;
  std::size_t begin = 0;
  for (const std::size_t cut : cuts) {
    parts.emplace_back(text.substr(begin, cut - begin));
    begin = cut + separator.size();
  }
  parts.emplace_back(text.substr(begin));
  return parts;
}

Value split(Interpreter& run, const Text& text, std::string_view name, Arguments& args) {
  const Value separator = args.take(0, "sep"), count = args.take(1, "maxsplit");
  const std::int64_t most = count.is_undefined() ? -1 : count.to_int("maxsplit");
  run.charge(text.size());
  run.step(text.size() / 8);
  std::vector<Value> parts;
  if (separator.is_undefined() || separator.is_none()) {
    if (name == "rsplit" && most >= 0) throw Error("rsplit() with a count needs a separator");
    parts = split_at_space(text, most);
  } else if (separator.as_text() == nullptr) {
    throw Error("the separator of split() must be a text");
  } else {
    parts = split_at(text, separator.as_text()->bytes, most, name == "rsplit");
  }
  run.step(parts.size());
  return Value::list(std::move(parts));
}

Value partition(Interpreter& run, const Text& text, bool from_right, Arguments& args) {
  const Text separator = text_argument(args, 0, "sep", "partition");
  if (separator.empty()) throw Error("the separator of partition() is empty");
  run.charge(text.size());
  const std::size_t cut = from_right ? text.bytes.rfind(separator.bytes)
                                     : text.bytes.find(separator.bytes);
  if (cut == std::string::npos) {
    if (from_right) return Value::list({Value(Text()), Value(Text()), Value(text)}, true);
    return Value::list({Value(text), Value(Text()), Value(Text())}, true);
  }
  return Value::list({Value(text.substr(0, cut)), Value(text.substr(cut, separator.size())),
                      Value(text.substr(cut + separator.size()))},
                     true);
}

/// The part of a text that a method looks at.
struct Part {
  Text text;
  std::int64_t begin = 0;  ///< its first character
};

/// The part between the arguments start and end, as a slice has it. None: start lies behind end,
/// where not even an empty text is found.
std::optional<Part> part_of(const Text& text, Arguments& args) {
  const Value start = args.take(1, "start"), end = args.take(2, "end");
  const auto given = [](const Value& v) { return !v.is_undefined() && !v.is_none(); };
  if (!given(start) && !given(end)) return Part{text};
  const auto size = static_cast<std::int64_t>(num_characters(text.bytes));
  const auto place = [&](const Value& v, std::int64_t fallback) {
    const std::int64_t i = given(v) ? v.to_int("the bound of a text") : fallback;
    return i < 0 ? std::max<std::int64_t>(i + size, 0) : i;
  };
  const std::int64_t from = place(start, 0), to = std::min(place(end, size), size);
  if (from > to) return std::nullopt;
  const std::size_t begin = offset_of_character(text.bytes, to_size(from)),
                    after = offset_of_character(text.bytes, to_size(to));
  return Part{text.substr(begin, after - begin), from};
}

/// startswith() and endswith(), which take one text or a tuple of them.
bool has_end(const Text& whole, bool front, Arguments& args) {
  const Value wanted = args.take(0, "prefix");
  const auto part = part_of(whole, args);
  const auto fits = [&](const Value& v) {
    if (v.as_text() == nullptr) throw Error("startswith() and endswith() need texts");
    if (!part) return false;
    return front ? part->text.bytes.starts_with(v.as_text()->bytes)
                 : part->text.bytes.ends_with(v.as_text()->bytes);
  };
  if (const List* list = wanted.as_list())
    return std::any_of(list->items.begin(), list->items.end(), fits);
  return fits(wanted);
}

Value find(const Text& whole, std::string_view name, Arguments& args) {
  const Text wanted = text_argument(args, 0, "sub", name);
  const auto part = part_of(whole, args);
  std::size_t at = std::string::npos;
  if (part)
    at = name == "rfind" ? part->text.bytes.rfind(wanted.bytes)
                         : part->text.bytes.find(wanted.bytes);
  if (at == std::string::npos && name == "index")
    throw Error("the text does not hold what index() looks for");
  if (at == std::string::npos) return std::int64_t{-1};
  return part->begin + static_cast<std::int64_t>(
                           num_characters(std::string_view(part->text.bytes).substr(0, at)));
}

std::int64_t count(const Text& whole, Arguments& args) {
  const Text wanted = text_argument(args, 0, "sub", "count");
  const auto part = part_of(whole, args);
  if (!part) return 0;
  const std::string& text = part->text.bytes;
  if (wanted.empty()) return static_cast<std::int64_t>(num_characters(text)) + 1;
  std::int64_t n = 0;
  for (std::size_t at = text.find(wanted.bytes); at != std::string::npos;
       at = text.find(wanted.bytes, at + wanted.size())) {
    ++n;
  }
  return n;
}

Value join(Interpreter& run, const Text& glue, Arguments& args) {
  Text out;
  bool first = true;
  for (const Value& one : run.items(args.take(0, "iterable"))) {
    if (one.as_text() == nullptr)
      throw Error("join() needs texts, not a value of type " + one.type_name());
    run.step();
    run.charge(glue.size() + one.as_text()->size());
    if (!first) out.append(glue);
    first = false;
    out.append(*one.as_text());
  }
  return Value(std::move(out));
}

Value stripped(Interpreter& run, const Text& text, std::string_view name, Arguments& args) {
  const Value characters = args.take(0, "chars");
  const Text* only = characters.as_text();
  return run.text(
      strip(text, name != "rstrip", name != "lstrip", only == nullptr ? nullptr : &only->bytes));
}

Value asked(const Text& text, std::string_view name) {
  if (name == "isspace") return all_of(text, is_space);
  if (name == "isdigit") return all_of(text, is_number);
  if (name == "isalpha") return all_of(text, is_letter);
  if (name == "isalnum")
    return all_of(text, [](char32_t c) { return is_letter(c) || is_number(c); });
  const Case other = name == "islower" ? Case::kUpper : Case::kLower,
             own = name == "islower" ? Case::kLower : Case::kUpper;
  return changed_case(text, own).bytes == text.bytes &&
         changed_case(text, other).bytes != text.bytes;
}

}  // namespace

Text changed_case(const Text& text, Case to) {
  Text out;
  bool word_begins = true, first = true;
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text.bytes, at);
    bool upper = to == Case::kUpper;
    if (to == Case::kTitle || to == Case::kWords) upper = word_begins;
    if (to == Case::kCapitalize) upper = first;
    const auto code = static_cast<utf8proc_int32_t>(c.code_point);
    const auto other = static_cast<char32_t>(upper ? utf8proc_toupper(code)
                                                   : utf8proc_tolower(code));
    if (other == c.code_point) {
      out.append(text, c.begin, c.end - c.begin);
    } else {
      std::string bytes;
      tokenizer_internal::append_utf8(other, bytes);
      out.append(bytes, text.mark_at(c.begin));
    }
    word_begins = !is_letter(c.code_point);
    if (to == Case::kWords) {
      word_begins = is_space(c.code_point) ||
                    std::u32string_view(U"-({[<").find(c.code_point) != std::u32string_view::npos;
    }
    first = false;
    at = c.end;
  }
  return out;
}

std::vector<Text> split_lines(const Text& text, bool keep_ends) {
  std::vector<Text> lines;
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Character c = character_at(text.bytes, at);
    const char32_t p = c.code_point;
    const bool ends = (p >= 0x0A && p <= 0x0D) || (p >= 0x1C && p <= 0x1E) || p == 0x85 ||
                      p == 0x2028 || p == 0x2029;
    at = c.end;
    if (!ends) continue;
    if (p == '\r' && at < text.size() && text.bytes[at] == '\n') ++at;
    lines.push_back(text.substr(begin, (keep_ends ? at : c.begin) - begin));
    begin = at;
  }
  if (begin < text.size()) lines.push_back(text.substr(begin));
  return lines;
}

Text replaced(Interpreter& run, const Text& text, const Text& from, const Text& to,
              std::int64_t most) {
  Text out;
  run.step(1 + text.size() / 64);
  const auto put = [&](const Text& source, std::size_t begin, std::size_t size) {
    run.charge(size);
    out.append(source, begin, size);
  };
  std::size_t at = 0;
  if (from.empty()) {  // between all characters, and at both ends
    for (; at < text.size() && most != 0; --most) {
      const Character c = character_at(text.bytes, at);
      run.step();
      put(to, 0, to.size());
      put(text, c.begin, c.end - c.begin);
      at = c.end;
    }
    if (most != 0) put(to, 0, to.size());
  } else {
    for (; most != 0; --most) {
      const std::size_t found = text.bytes.find(from.bytes, at);
      if (found == std::string::npos) break;
      run.step();
      put(text, at, found - at);
      put(to, 0, to.size());
      at = found + from.size();
    }
  }
  put(text, at, text.size() - at);
  return out;
}

/// The argument that a field of format() names. `next` counts the fields without a name.
const Value& format_argument(const Arguments& args, const std::string& field, std::size_t& next) {
  std::size_t index = next;
  const auto [end, ec] = std::from_chars(field.data(), field.data() + field.size(), index);
  if (field.empty() || (ec == std::errc() && end == field.data() + field.size())) {
    if (field.empty()) ++next;
    if (index >= args.positional.size()) throw Error("format() has too few arguments");
    return args.positional[index];
  }
  const auto named = std::ranges::find(args.named, field, &std::pair<std::string, Value>::first);
  if (named == args.named.end())
    throw Error("format() has no argument '" + field.substr(0, 80) + "'");
  return named->second;
}

/// As Python's str.format() for fields that are empty, a number or a name: none with an attribute,
/// a conversion or a format specification.
Value formatted(Interpreter& run, const Text& text, const Arguments& args) {
  Text out;
  const auto put = [&](std::size_t begin, std::size_t end) {
    run.charge(end - begin);
    out.append(text, begin, end - begin);
  };
  std::size_t next = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t brace = std::min(text.bytes.find_first_of("{}", at), text.size());
    put(at, brace);
    if (brace == text.size()) break;
    run.step();
    const char c = text.bytes[brace];
    if (brace + 1 < text.size() && text.bytes[brace + 1] == c) {  // two mean one
      put(brace, brace + 1);
      at = brace + 2;
      continue;
    }
    const std::size_t end = text.bytes.find('}', brace);
    if (c == '}' || end == std::string::npos) throw Error("format() met a brace without its pair");
    out.append(run.str(format_argument(args, text.bytes.substr(brace + 1, end - brace - 1), next)));
    at = end + 1;
  }
  return Value(std::move(out));
}

std::optional<std::int64_t> whole_number_of(std::string_view text, int base) {
  const Text bare = strip(Text(std::string(text.substr(0, 400))), true, true);
  std::string_view s = bare.bytes;
  const bool negative = s.starts_with('-');
  if (negative || s.starts_with('+')) s.remove_prefix(1);
  const char mark = base == 16 ? 'x' : (base == 8 ? 'o' : 'b');
  if ((base == 16 || base == 8 || base == 2) && s.size() > 2 && s[0] == '0' &&
      (s[1] | 0x20) == mark) {
    s.remove_prefix(2);
  }
  std::int64_t i = 0;
  const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), i, base);
  if (ec != std::errc() || end != s.data() + s.size() || s.starts_with('-')) return std::nullopt;
  return negative ? -i : i;
}

Value number_of(std::string_view text, bool integer, const Value& fallback) {
  const Text bare = strip(Text(std::string(text.substr(0, 400))), true, true);
  std::string_view s = bare.bytes;
  if (s.starts_with('+')) s.remove_prefix(1);
  if (integer) {
    std::int64_t i = 0;
    const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), i);
    if (ec == std::errc() && end == s.data() + s.size() && !s.empty()) return i;
  }
  double d = 0;
  const auto [end, ec] = std::from_chars(s.data(), s.data() + s.size(), d);
  if (ec != std::errc() || end != s.data() + s.size() || s.empty()) return fallback;
  if (!integer) return d;
  return std::fabs(d) < 9e18 ? Value(static_cast<std::int64_t>(d)) : fallback;
}

bool is_text_method(std::string_view name) {
  return std::find(std::begin(kMethods), std::end(kMethods), name) != std::end(kMethods);
}

Value call_text_method(Interpreter& run, const Text& text, std::string_view name, Arguments& args) {
  run.step(text.size() / 64);
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return stripped(run, text, name, args);
  if (name == "split" || name == "rsplit") return split(run, text, name, args);
  if (name == "partition" || name == "rpartition")
    return partition(run, text, name == "rpartition", args);
  if (name == "startswith" || name == "endswith") return has_end(text, name == "startswith", args);
  if (name == "find" || name == "rfind" || name == "index") return find(text, name, args);
  if (name == "count") return count(text, args);
  if (name == "join") return join(run, text, args);
  if (name == "upper") return run.text(changed_case(text, Case::kUpper));
  if (name == "lower") return run.text(changed_case(text, Case::kLower));
  if (name == "title") return run.text(changed_case(text, Case::kTitle));
  if (name == "capitalize") return run.text(changed_case(text, Case::kCapitalize));
  if (name == "removeprefix" || name == "removesuffix") {
    const Text part = text_argument(args, 0, "prefix", name);
    const bool front = name == "removeprefix";
    const bool fits = front ? text.bytes.starts_with(part.bytes) : text.bytes.ends_with(part.bytes);
    if (!fits) return run.text(text);
    return run.text(text.substr(front ? part.size() : 0, text.size() - part.size()));
  }
  if (name == "replace") {
    const Text from = text_argument(args, 0, "old", name), to = text_argument(args, 1, "new", name);
    const Value most = args.take(2, "count");
    return Value(replaced(run, text, from, to, most.is_undefined() ? -1 : most.to_int("count")));
  }
  if (name == "format") return formatted(run, text, args);
  if (name == "splitlines") {
    run.charge(text.size());
    std::vector<Value> lines;
    for (Text& line : split_lines(text, args.take(0, "keepends").truthy()))
      lines.emplace_back(std::move(line));
    run.step(lines.size());
    return Value::list(std::move(lines));
  }
  return asked(text, name);
}

}  // namespace quire::jinja
