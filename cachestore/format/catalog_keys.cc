#include "cachestore/format/catalog_keys.h"

namespace quire {

std::string catalog_key(char kind, std::string_view ns, std::string_view id) {
  std::string key;
  key.reserve(ns.size() + id.size() + 2);
  key += kind;
  key += ns;
  key += '\0';
  key += id;
  return key;
}

std::string segment_record_key(SegmentId id) {
  std::string key(1, kSegmentKind);
  for (int i = 7; i >= 0; --i) key += static_cast<char>(id >> (8 * i));
  return key;
}

std::string named_key(char kind, std::string_view name) {
  std::string key(1, kind);
  key += name;
  return key;
}

std::string term_key(std::string_view ns, std::string_view term) {
  std::string key(1, kTermKind);
  key += ns;
  key += '\0';
  key += term;
  return key;
}

std::string text_key(const DocumentManifest& m) {
  return m.text_name.empty() ? catalog_key(kTextKind, m.ns, m.id)
                             : named_key(kNamedTextKind, m.text_name);
}

}  // namespace quire
