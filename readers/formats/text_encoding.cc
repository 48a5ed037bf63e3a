#include "readers/formats/text_encoding.h"

#include <uchardet/uchardet.h>
#include <unicode/ucnv.h>

#include <algorithm>
#include <memory>

#include "base/index.h"
#include "base/utf8.h"

namespace quire {
namespace {

using namespace std::literals;

struct Mark {
  std::string_view bytes, encoding;
};
// The longer of two marks with a common beginning comes first.
constexpr Mark kMarks[] = {{"\xff\xfe\0\0"sv, "UTF-32LE"},
                           {"\0\0\xfe\xff"sv, "UTF-32BE"},
                           {"\xef\xbb\xbf"sv, "UTF-8"},
                           {"\xff\xfe"sv, "UTF-16LE"},
                           {"\xfe\xff"sv, "UTF-16BE"}};

/// UTF-16 without a mark: where text has many ASCII characters, every second byte is zero.
std::string_view utf16_by_zeros(std::string_view bytes) {
  const std::size_t n = std::min<std::size_t>(bytes.size(), 64 << 10) & ~std::size_t{1};
  if (n < 4 || bytes.size() % 2 != 0) return {};
  std::size_t even = 0, odd = 0;
  for (std::size_t i = 0; i < n; i += 2) {
    even += bytes[i] == '\0';
    odd += bytes[i + 1] == '\0';
  }
  const std::size_t pairs = n / 2;
  if (odd * 5 > pairs * 2 && even * 20 < pairs) return "UTF-16LE";
  if (even * 5 > pairs * 2 && odd * 20 < pairs) return "UTF-16BE";
  return {};
}

std::string detected(std::string_view bytes) {
  const std::unique_ptr<std::remove_pointer_t<uchardet_t>, decltype(&uchardet_delete)> detector(
      uchardet_new(), &uchardet_delete);
  const std::string_view sample = bytes.substr(0, 1 << 20);
  if (uchardet_handle_data(detector.get(), sample.data(), sample.size()) != 0) return {};
  uchardet_data_end(detector.get());
  return uchardet_get_charset(detector.get());
}

/// Whether a few bytes are wrong in what is UTF-8 otherwise. Text in another encoding has hardly a
/// character that is valid UTF-8 by chance.
bool nearly_utf8(std::string_view bytes) {
  std::size_t wrong = 0, characters = 0;
  while (true) {
    const std::size_t good = tokenizer_internal::valid_utf8_prefix(bytes);
    characters += to_size(
        std::count_if(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(good),
                      [](char c) { return static_cast<unsigned char>(c) >= 0xC2; }));
    if (good == bytes.size()) break;
    ++wrong;
    bytes.remove_prefix(good + 1);
  }
  return characters >= 4 * wrong;
}

/// Returns UTF-8; characters that the encoding does not have become U+FFFD.
Result<std::string> converted(std::string_view bytes, const std::string& encoding) {
  UErrorCode error = U_ZERO_ERROR;
  const std::unique_ptr<UConverter, decltype(&ucnv_close)> from(ucnv_open(encoding.c_str(), &error),
                                                                &ucnv_close);
  if (U_FAILURE(error))
    return Status::invalid("encoding", "the encoding '" + encoding.substr(0, 64) + "' is unknown");
  UErrorCode utf8_error = U_ZERO_ERROR;
  const std::unique_ptr<UConverter, decltype(&ucnv_close)> to(ucnv_open("UTF-8", &utf8_error),
                                                              &ucnv_close);
  if (U_FAILURE(utf8_error)) return Status::internal("ICU has no UTF-8");
  std::string out;
  std::vector<char> piece(64 << 10);
  UChar pivot[4096];
  UChar *pivot_source = pivot, *pivot_target = pivot;
  const char* source = bytes.data();
  const char* const end = source + bytes.size();
  for (UBool reset = true;; reset = false) {
    char* target = piece.data();
    error = U_ZERO_ERROR;
    ucnv_convertEx(to.get(), from.get(), &target, piece.data() + piece.size(), &source, end, pivot,
                   &pivot_source, &pivot_target, pivot + std::size(pivot), reset, true, &error);
    out.append(piece.data(), target);
    if (error == U_BUFFER_OVERFLOW_ERROR) continue;
    if (U_FAILURE(error))
      return Status::invalid("encoding", "cannot be read as " + encoding.substr(0, 64));
    return out;
  }
}

/// Whether so many control characters are in a text that it is none.
bool looks_binary(std::string_view text) {
  const std::string_view sample = text.substr(0, 256 << 10);
  const auto odd = std::count_if(sample.begin(), sample.end(), [](char c) {
    const auto b = static_cast<unsigned char>(c);
    return (b < 0x20 && c != '\n' && c != '\r' && c != '\t' && c != '\f' && b != 0x1b) || b == 0x7f;
  });
  return to_size(odd) * 50 > sample.size();
}

void normalize_lines(std::string& text) {
  std::size_t to = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      text[to++] = '\n';
      if (i + 1 < text.size() && text[i + 1] == '\n') ++i;
    } else {
      text[to++] = text[i];
    }
  }
  text.resize(to);
}

}  // namespace

Result<DecodedText> decode_text(std::string_view bytes, const std::string& told,
                                const std::string& declared) {
  DecodedText out;
  for (const Mark& mark : kMarks) {
    if (!bytes.starts_with(mark.bytes)) continue;
    out.encoding = mark.encoding;
    bytes.remove_prefix(mark.bytes.size());
    break;
  }
  if (out.encoding.empty()) out.encoding = told;
  if (out.encoding.empty()) out.encoding = utf16_by_zeros(bytes);
  const bool valid = tokenizer_internal::valid_utf8_prefix(bytes) == bytes.size();
  if (out.encoding.empty() && valid) out.encoding = "UTF-8";
  if (out.encoding.empty()) {
    // Zero bytes are in no other encoding of text, and statistics would find one for any bytes.
    if (looks_binary(bytes)) return Status::unimplemented("is not text: it looks like binary data");
    out.encoding = declared;
    UErrorCode error = U_ZERO_ERROR;
    if (!declared.empty()) ucnv_close(ucnv_open(declared.c_str(), &error));
    if (declared.empty() || U_FAILURE(error))
      out.encoding = nearly_utf8(bytes) ? "UTF-8" : detected(bytes);
    // Few bytes beyond ASCII say little; Windows-1252 is what most of such files are.
    if (out.encoding.empty()) out.encoding = "windows-1252";
    out.warnings.push_back("read as " + out.encoding + "; --encoding names another");
  }
  if (out.encoding == "UTF-8" && valid) {
    out.text = bytes;
  } else {
    auto text = converted(bytes, out.encoding);
    if (!text.ok()) return text.status();
    out.text = std::move(*text);
    const auto lost = [&] {
      std::size_t n = 0;
      for (auto at = out.text.find("\xef\xbf\xbd"); at != std::string::npos;
           at = out.text.find("\xef\xbf\xbd", at + 3))
        ++n;
      return n;
    }();
    if (lost * 10 > out.text.size()) return Status::invalid("", "is not text in " + out.encoding);
    if (lost > 0)
      out.warnings.push_back(std::to_string(lost) + " characters are not valid " + out.encoding);
  }
  if (looks_binary(out.text))
    return Status::unimplemented("is not text: it looks like binary data");
  if (const auto zeros = std::count(out.text.begin(), out.text.end(), '\0'); zeros > 0) {
    out.text.erase(std::remove(out.text.begin(), out.text.end(), '\0'), out.text.end());
    out.warnings.push_back(std::to_string(zeros) + " NUL characters are left out");
  }
  // A mark in the middle, as files that were joined have.
  if (out.text.starts_with("\xef\xbb\xbf")) out.text.erase(0, 3);
  normalize_lines(out.text);
  return out;
}

}  // namespace quire
