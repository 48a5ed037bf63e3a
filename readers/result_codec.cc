#include "readers/result_codec.h"

#include <algorithm>
#include <cstring>

#include "base/index.h"
#include "base/utf8.h"

namespace quire {
namespace {

constexpr std::string_view kMagic = "QRD1";
constexpr std::size_t kMaxName = 32, kMaxField = 4096;

template <class T>
void put(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof value; ++i)
    out += static_cast<char>(static_cast<std::uint64_t>(value) >> (8 * i) & 0xff);
}

void put_text(std::string& out, std::string_view text) {
  put(out, std::uint64_t{text.size()});
  out += text;
}

bool plain_text(std::string_view text) {
  return tokenizer_internal::valid_utf8_prefix(text) == text.size() &&
         text.find('\0') == std::string_view::npos;
}

/// Reads fields in order. After the first that is wrong, ok() is false and all others are empty.
class FieldReader {
 public:
  explicit FieldReader(std::string_view bytes) : rest_(bytes) {}
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && rest_.empty(); }
  void fail() { ok_ = false; }

  template <class T>
  T number() {
    if (!take(sizeof(T))) return 0;
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i)
      value |= std::uint64_t{static_cast<unsigned char>(taken_[i])} << (8 * i);
    return static_cast<T>(value);
  }
  std::string text(std::uint64_t most) {
    const auto size = number<std::uint64_t>();
    if (size > most || !take(size) || !plain_text(taken_)) {
      ok_ = false;
      return {};
    }
    return std::string(taken_);
  }
  /// Returns the number of items, each of which takes at least `item_bytes`.
  std::uint64_t count(std::uint64_t item_bytes, std::uint64_t most) {
    const auto n = number<std::uint64_t>();
    if (n > most || n > rest_.size() / item_bytes) ok_ = false;
    return ok_ ? n : 0;
  }

 private:
  bool take(std::uint64_t size) {
    if (!ok_ || size > rest_.size()) return ok_ = false;
    taken_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }
  std::string_view rest_, taken_;
  bool ok_ = true;
};

bool begins_character(std::string_view text, std::uint64_t offset) {
  return offset == text.size() ||
         (offset < text.size() && (static_cast<unsigned char>(text[offset]) & 0xC0) != 0x80);
}

ReadDocument read_one(FieldReader& r, std::uint64_t max_text) {
  ReadDocument d;
  d.title = r.text(kMaxField);
  d.part = r.text(kMaxField);
  d.text = r.text(max_text);
  d.markdown = r.number<std::uint8_t>() != 0;
  const auto marks = r.count(20, max_text + 1);
  for (std::uint64_t i = 0; r.ok() && i < marks; ++i) {
    TextMark mark;
    mark.offset = r.number<std::uint64_t>();
    mark.page = r.number<std::uint32_t>();
    mark.heading = r.text(kMaxField);
    if (!begins_character(d.text, mark.offset) ||
        (!d.marks.empty() && mark.offset < d.marks.back().offset))
      r.fail();
    d.marks.push_back(std::move(mark));
  }
  const auto members = r.count(16, 64);
  for (std::uint64_t i = 0; r.ok() && i < members; ++i) {
    std::string name = r.text(64);
    d.metadata.emplace_back(std::move(name), r.text(kMaxField));
  }
  const auto warnings = r.count(8, 64);
  for (std::uint64_t i = 0; r.ok() && i < warnings; ++i) d.warnings.push_back(r.text(kMaxField));
  return d;
}

/// The codes that a reader may report.
constexpr Code kCodes[] = {Code::kNotFound,           Code::kInvalidArgument,
                           Code::kFailedPrecondition, Code::kResourceExhausted,
                           Code::kUnimplemented,      Code::kInternal};

std::size_t format_end(std::string_view bytes) {
  if (bytes.size() < kMagic.size() + 1 || !bytes.starts_with(kMagic)) return 0;
  const std::size_t length = static_cast<unsigned char>(bytes[kMagic.size()]);
  const std::size_t end = kMagic.size() + 1 + length;
  return length == 0 || length > kMaxName || end > bytes.size() ? 0 : end;
}

}  // namespace

std::string encode_format(std::string_view format) {
  std::string out(kMagic);
  out += static_cast<char>(format.size());
  out += format;
  return out;
}

std::string encode_result(const Result<std::vector<ReadDocument>>& result) {
  std::string body;
  if (!result.ok()) {
    const auto* code = std::find(std::begin(kCodes), std::end(kCodes), result.code());
    body += static_cast<char>(1 + std::min(code - std::begin(kCodes), std::ssize(kCodes) - 1));
    put_text(body, result.status().message());
  } else {
    body += '\0';
    put(body, std::uint64_t{result->size()});
    for (const ReadDocument& d : *result) {
      put_text(body, d.title);
      put_text(body, d.part);
      put_text(body, d.text);
      body += d.markdown ? '\1' : '\0';
      put(body, std::uint64_t{d.marks.size()});
      for (const TextMark& mark : d.marks) {
        put(body, mark.offset);
        put(body, mark.page);
        put_text(body, mark.heading);
      }
      put(body, std::uint64_t{d.metadata.size()});
      for (const auto& [name, value] : d.metadata) {
        put_text(body, name);
        put_text(body, value);
      }
      put(body, std::uint64_t{d.warnings.size()});
      for (const auto& warning : d.warnings) put_text(body, warning);
    }
  }
  std::string out;
  put(out, std::uint64_t{body.size()});
  return out + body;
}

std::string decode_format(std::string_view bytes) {
  const std::size_t end = format_end(bytes);
  const std::string_view name = end == 0 ? ""
                                         : bytes.substr(kMagic.size() + 1, end - kMagic.size() - 1);
  const auto fine = [](char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); };
  return std::all_of(name.begin(), name.end(), fine) ? std::string(name) : std::string();
}

Result<std::vector<ReadDocument>> decode_result(std::string_view bytes,
                                                const ReaderLimits& limits) {
  const Status wrong = Status::corruption("the reader's result is not well formed");
  const std::size_t end = format_end(bytes);
  if (end == 0) return wrong;
  FieldReader r(bytes.substr(end));
  const auto size = r.number<std::uint64_t>();
  if (!r.ok() || size != bytes.size() - end - sizeof size) return wrong;
  const auto code = r.number<std::uint8_t>();
  if (code > std::size(kCodes)) return wrong;
  if (code > 0) {
    std::string message = r.text(kMaxField);
    if (!r.at_end() || message.empty()) return wrong;
    return Status(kCodes[code - 1], std::move(message));
  }
  const auto count = r.count(49, limits.documents);
  std::vector<ReadDocument> out;
  std::uint64_t left = limits.text_bytes;
  for (std::uint64_t i = 0; r.ok() && i < count; ++i) {
    out.push_back(read_one(r, left));
    left -= std::min<std::uint64_t>(left, out.back().text.size());
  }
  if (!r.at_end()) return wrong;
  return out;
}

}  // namespace quire
