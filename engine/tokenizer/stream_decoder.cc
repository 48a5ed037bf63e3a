#include "engine/tokenizer/stream_decoder.h"

#include <algorithm>
#include <cstring>

#include "base/index.h"

namespace quire {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Length of the character a lead byte begins, 0 if it begins none.
int length_of(unsigned char lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  if (lead >= 0xF0 && lead <= 0xF4) return 4;
  return 0;
}

/// Whether `byte` may follow `lead` as the second byte: excludes overlong forms, surrogates and
/// code points past U+10FFFF.
bool second_fits(unsigned char lead, unsigned char byte) {
  switch (lead) {
    case 0xE0:
      return byte >= 0xA0 && byte <= 0xBF;
    case 0xED:
      return byte >= 0x80 && byte <= 0x9F;
    case 0xF0:
      return byte >= 0x90 && byte <= 0xBF;
    case 0xF4:
      return byte >= 0x80 && byte <= 0x8F;
    default:
      return byte >= 0x80 && byte <= 0xBF;
  }
}

}  // namespace

void Utf8Stream::feed(std::string_view bytes, std::string& out) {
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (num_pending_ > 0) {
      const bool fits = num_pending_ == 1
                            ? second_fits(static_cast<unsigned char>(pending_[0]), byte)
                            : (byte & 0xC0) == 0x80;
      if (fits) {
        pending_[num_pending_++] = c;
        if (num_pending_ == num_wanted_) {
          out.append(pending_, to_size(num_pending_));
          num_pending_ = 0;
        }
        continue;
      }
      out.append(kReplacement);
      num_pending_ = 0;
    }
    num_wanted_ = length_of(byte);
    if (num_wanted_ == 0) {
      out.append(kReplacement);
    } else if (num_wanted_ == 1) {
      out.push_back(c);
    } else {
      pending_[num_pending_++] = c;
    }
  }
}

void Utf8Stream::flush(std::string& out) {
  if (num_pending_ > 0) out.append(kReplacement);
  num_pending_ = 0;
}

bool has_text(const Tokenizer& tokenizer, std::int32_t id) {
  if (!tokenizer.is_special(id)) return true;
  const std::string_view spelling = tokenizer.token_bytes(id);
  return spelling == "<think>" || spelling == "</think>";
}

std::string StreamDecoder::push(std::int32_t id) {
  std::string out;
  if (!keep_special_ && !has_text(tokenizer_, id) &&
      std::find(shown_.begin(), shown_.end(), id) == shown_.end())
    return out;
  std::string_view bytes = tokenizer_.token_bytes(id);
  if (bytes.empty()) return out;
  if (strip_space_ && !tokenizer_.is_special(id)) {
    if (bytes.front() == ' ') bytes.remove_prefix(1);
    strip_space_ = false;
  }
  utf8_.feed(bytes, out);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out;
  utf8_.flush(out);
  return out;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool keep_special) const {
  StreamDecoder decoder(*this, keep_special);
  std::string text;
  for (const std::int32_t id : ids) text += decoder.push(id);
  text += decoder.finish();
  return text;
}

}  // namespace quire
