#include "ingest/document/document_id.h"

#include <utf8proc.h>

#include <cstdlib>
#include <memory>

#include "base/index.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "cachestore/format/document.h"

namespace quire {
namespace {

using tokenizer_internal::decode_utf8;

constexpr std::size_t kSuffixBytes = 9;  // "~" and 8 hex digits

bool begins_id(char32_t c) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
      return true;
    default:
      return false;
  }
}

bool is_mark(char32_t c) {
  const auto category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME;
}

bool stays(char32_t c) { return begins_id(c) || is_mark(c) || c == '.' || c == '_' || c == '-'; }

/// Returns the text in NFC. Text that is not UTF-8 is returned as it is.
std::string composed(std::string_view text) {
  utf8proc_uint8_t* out = nullptr;
  const auto size = utf8proc_map(
      reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
      static_cast<utf8proc_ssize_t>(text.size()), &out,
      static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(out, &std::free);
  if (size < 0) return std::string(text);
  return std::string(reinterpret_cast<const char*>(out), to_size(size));
}

/// Cuts to at most `most` bytes, between two characters.
void cut(std::string& text, std::size_t most) {
  if (text.size() <= most) return;
  while (most > 0 && (static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  text.resize(most);
}

}  // namespace

bool is_document_id(std::string_view id) {
  if (id.empty() || id.size() > kMaxIdBytes) return false;
  for (std::size_t i = 0; i < id.size();) {
    char32_t c = 0;
    const int length = decode_utf8(id.substr(i), c);
    if (length == 0) return false;
    if (i == 0 ? !begins_id(c) : !stays(c) && c != ':' && c != '~') return false;
    i += to_size(length);
  }
  return true;
}

std::string document_id_of_path(std::string_view path) {
  const std::string text = composed(path);
  bool changed = text != path;
  std::string id;
  bool in_run = false;
  for (std::size_t i = 0; i < text.size();) {
    char32_t c = 0;
    const int length = decode_utf8(std::string_view(text).substr(i), c);
    const std::string_view character(text.data() + i, to_size(length > 0 ? length : 1));
    i += character.size();
    const bool fits = length > 0 && (c == '/' || stays(c));
    if (!fits) {
      changed = true;
      if (!in_run && !id.empty()) id += '-';
      in_run = true;
      continue;
    }
    in_run = false;
    if (id.empty() && !begins_id(c)) {
      changed = true;
      continue;
    }
    if (c == '/')
      id += ':';
    else
      id += character;
  }
  if (id.empty()) {
    id = "file";
    changed = true;
  }
  if (!changed && id.size() <= kMaxIdBytes) return id;
  cut(id, kMaxIdBytes - kSuffixBytes);
  return id + "~" + sha256(path).hex().substr(0, 8);
}

}  // namespace quire
