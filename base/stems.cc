#include "base/stems.h"

#include <libstemmer.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <unordered_map>

#include "base/index.h"
#include "base/utf8.h"

namespace quire {
namespace {

enum class Script : std::uint8_t {
  kLatin,
  kGreek,
  kCyrillic,
  kArmenian,
  kHebrew,
  kArabic,
  kDevanagari,
  kTamil,
  kOther,
};

Script script_of(char32_t c) {
  if (c < 0x250 || (c >= 0x1E00 && c <= 0x1EFF)) return Script::kLatin;
  if ((c >= 0x370 && c <= 0x3FF) || (c >= 0x1F00 && c <= 0x1FFF)) return Script::kGreek;
  if (c >= 0x400 && c <= 0x52F) return Script::kCyrillic;
  if (c >= 0x530 && c <= 0x58F) return Script::kArmenian;
  if (c >= 0x590 && c <= 0x5FF) return Script::kHebrew;
  if (c >= 0x600 && c <= 0x6FF) return Script::kArabic;
  if (c >= 0x900 && c <= 0x97F) return Script::kDevanagari;
  if (c >= 0xB80 && c <= 0xBFF) return Script::kTamil;
  return Script::kOther;
}

/// Languages that are not written in Latin letters, and whether they serve their script unasked.
struct Other {
  std::string_view language;
  Script script;
  bool usual;
};
constexpr Other kOthers[] = {
    {"arabic", Script::kArabic, true},      {"armenian", Script::kArmenian, true},
    {"greek", Script::kGreek, true},        {"hindi", Script::kDevanagari, true},
    {"nepali", Script::kDevanagari, false}, {"russian", Script::kCyrillic, true},
    {"serbian", Script::kCyrillic, false},  {"tamil", Script::kTamil, true},
    {"yiddish", Script::kHebrew, false},
};

constexpr std::string_view kNone = "none";

}  // namespace

std::vector<std::string_view> stem_languages() {
  std::vector<std::string_view> names = {kNone};
  for (const char** name = sb_stemmer_list(); *name != nullptr; ++name) names.emplace_back(*name);
  return names;
}

Status check_stem_language(std::string_view language, std::string_view field) {
  const std::vector<std::string_view> known = stem_languages();
  if (std::ranges::find(known, language) != known.end()) return {};
  std::string list;
  for (const std::string_view name : known) list.append(list.empty() ? "" : ", ").append(name);
  return Status::invalid(std::string(field),
                         "'" + std::string(language) + "' is no known language; use " + list);
}

struct Stemmer::Impl {
  struct Close {
    void operator()(sb_stemmer* stemmer) const { sb_stemmer_delete(stemmer); }
  };
  using Handle = std::unique_ptr<sb_stemmer, Close>;

  sb_stemmer* of(Script script) {
    if (script == Script::kOther) return nullptr;
    const std::size_t i = static_cast<std::size_t>(script);
    if (handles[i] == nullptr && !languages[i].empty())
      handles[i].reset(sb_stemmer_new(languages[i].c_str(), nullptr));
    return handles[i].get();
  }

  std::array<std::string, static_cast<std::size_t>(Script::kOther)> languages;  ///< empty: none
  std::array<Handle, static_cast<std::size_t>(Script::kOther)> handles;  ///< made on first use
  std::unordered_map<std::string, std::string> known;
};

Stemmer::Stemmer(std::string_view language) {
  const std::vector<std::string_view> all = stem_languages();
  if (language == kNone || std::ranges::find(all, language) == all.end()) return;
  impl_ = std::make_unique<Impl>();
  const auto own = std::ranges::find(kOthers, language, &Other::language);
  for (const Other& other : kOthers)
    if (other.usual) impl_->languages[static_cast<std::size_t>(other.script)] = other.language;
  const bool latin = own == std::end(kOthers);
  impl_->languages[static_cast<std::size_t>(Script::kLatin)] = latin ? language : "english";
  if (!latin) impl_->languages[static_cast<std::size_t>(own->script)] = language;
}

Stemmer::~Stemmer() = default;

bool Stemmer::works() const { return impl_ != nullptr; }

std::string Stemmer::stem(std::string_view word) {
  char32_t first = 0;
  if (impl_ == nullptr || tokenizer_internal::decode_utf8(word, first) == 0)
    return std::string(word);
  sb_stemmer* const stemmer = impl_->of(script_of(first));
  if (stemmer == nullptr) return std::string(word);
  std::string key(word);
  if (const auto found = impl_->known.find(key); found != impl_->known.end()) return found->second;
  const sb_symbol* const out = sb_stemmer_stem(
      stemmer, reinterpret_cast<const sb_symbol*>(word.data()), static_cast<int>(word.size()));
  std::string stem = out == nullptr ? key
                                    : std::string(reinterpret_cast<const char*>(out),
                                                  to_size(sb_stemmer_length(stemmer)));
  // A word without a stem would match every other such word.
  if (stem.empty()) stem = key;
  return impl_->known.emplace(std::move(key), std::move(stem)).first->second;
}

}  // namespace quire
