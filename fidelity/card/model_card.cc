#include "fidelity/card/model_card.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/json_parse.h"
#include "base/json_reader.h"
#include "base/log.h"
#include "base/sha256.h"
#include "cachestore/catalog/shared_catalog.h"
#include "engine/calibrate/citation_calibration.h"
#include "engine/calibrate/head_calibration.h"
#include "engine/calibrate/stable_layers.h"

namespace quire {
namespace json = boost::json;
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kFormat = "quire-model-card-1";
constexpr std::size_t kMostBytes = std::size_t{1} << 20, kMostEntries = 64, kMostText = 4096;

/// Writes `text` unless the store has a record of that name.
Status keep_if_new(Store& store, const std::string& name, const std::string& text) {
  if (text.empty()) return {};
  const Status known = store.get_meta(name).status();
  if (known.code() != Code::kNotFound) return known.ok() ? Status() : known;
  return store.put_meta(name, text);
}

Status keep_certificates(Store& store, const std::vector<Certificate>& certificates) {
  for (const Certificate& c : certificates) {
    const auto known = load_certificates(store, c.fingerprint_hex);
    const bool measured_here = std::ranges::any_of(
        known, [&](const Certificate& k) { return same_subject(k, c); });
    if (!measured_here) QUIRE_RETURN_IF_ERROR(save_certificates(store, {c}));
  }
  return {};
}

Result<std::string> stored_text(Store& store, const std::string& name) {
  auto text = store.get_meta(name);
  if (text.code() == Code::kNotFound) return std::string();
  return text;
}

}  // namespace

std::string model_card_json(const std::vector<ModelCardEntry>& entries) {
  json::array list;
  for (const ModelCardEntry& e : entries) {
    json::object o{{"fingerprint_sha256", e.fingerprint.hex()}};
    if (!e.selection_heads.empty()) o["selection_heads"] = e.selection_heads;
    if (!e.stable_layers.empty()) o["stable_layers"] = e.stable_layers;
    if (!e.citation_confidence.empty()) o["citation_confidence"] = e.citation_confidence;
    if (!e.certificates.empty()) {
      // certificates_json() writes what the parser below reads.
      o["certificates"] = json::parse(certificates_json(e.certificates));
    }
    list.push_back(std::move(o));
  }
  return json::serialize(json::object{{"format", kFormat}, {"models", std::move(list)}});
}

Result<std::vector<ModelCardEntry>> parse_model_card(std::string_view text) {
  const auto value = parse_json(text);
  if (!value.ok()) return Status::corruption(value.status().message());
  JsonReader r(*value, "");
  std::string format;
  r.string("format", format);
  if (format != kFormat) return Status::corruption("the format is not " + std::string(kFormat));
  const json::array* models = r.array("models", 0, kMostEntries, JsonNeed::kRequired);
  if (models == nullptr) return Status::corruption(r.error()->message);
  std::vector<ModelCardEntry> out;
  for (const auto& item : *models) {
    JsonReader m(item, "models[" + std::to_string(out.size()) + "]");
    ModelCardEntry e;
    std::string fingerprint;
    m.string("fingerprint_sha256", fingerprint, kMostText, JsonNeed::kRequired);
    m.string("selection_heads", e.selection_heads, kMostText);
    m.string("stable_layers", e.stable_layers, kMostText);
    m.string("citation_confidence", e.citation_confidence, kMostText);
    const json::value* certificates = m.raw("certificates");
    m.finish();
    if (!m.ok()) return Status::corruption(m.error()->message);
    const auto digest = Digest::from_hex(fingerprint);
    if (!digest.ok()) return Status::corruption("fingerprint_sha256 is not 64 hex digits");
    e.fingerprint = *digest;
    if (certificates != nullptr) {
      QUIRE_ASSIGN_OR_RETURN(e.certificates, parse_certificates(json::serialize(*certificates)));
    }
    out.push_back(std::move(e));
  }
  return out;
}

Result<ModelCardEntry> collect_model_card(Store& store, const Digest& fingerprint,
                                          const std::string& heads_fingerprint) {
  ModelCardEntry e;
  e.fingerprint = fingerprint;
  QUIRE_ASSIGN_OR_RETURN(e.selection_heads,
                         stored_text(store, selection_heads_record(fingerprint)));
  QUIRE_ASSIGN_OR_RETURN(e.stable_layers, stored_text(store, stable_layers_record(fingerprint)));
  QUIRE_ASSIGN_OR_RETURN(e.citation_confidence,
                         stored_text(store, citation_confidence_record(fingerprint)));
  e.certificates = load_certificates(store, heads_fingerprint);
  return e;
}

fs::path model_card_path(const fs::path& model_path) {
  std::error_code error;
  const fs::path folder = fs::is_directory(model_path, error) ? model_path
                                                              : model_path.parent_path();
  return folder / kModelCardFile;
}

Result<bool> adopt_model_card(Store& store, const fs::path& model_path) {
  const fs::path path = model_card_path(model_path);
  std::error_code error;
  const auto bytes = fs::file_size(path, error);
  if (error) return false;
  const auto refuse = [&](const std::string& reason) {
    log_warning("the model's card counts as none", {{"path", path.string()}, {"reason", reason}});
    return false;
  };
  if (bytes > kMostBytes)
    return refuse("it is longer than " + std::to_string(kMostBytes >> 20) + " MiB");
  std::ifstream in(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  if (!in) return refuse("it cannot be read");
  const std::string taken = "model-card/" + sha256(text).hex();
  const Status before = store.get_meta(taken).status();
  if (before.ok()) return false;
  if (before.code() != Code::kNotFound) return before;
  const auto card = parse_model_card(text);
  if (!card.ok()) return refuse(card.status().message());
  for (const ModelCardEntry& e : *card) {
    QUIRE_RETURN_IF_ERROR(
        keep_if_new(store, selection_heads_record(e.fingerprint), e.selection_heads));
    QUIRE_RETURN_IF_ERROR(keep_if_new(store, stable_layers_record(e.fingerprint), e.stable_layers));
    QUIRE_RETURN_IF_ERROR(
        keep_if_new(store, citation_confidence_record(e.fingerprint), e.citation_confidence));
    const Status kept = keep_certificates(store, e.certificates);
    if (catalog_is_away(kept))
      return refuse(
          "its certificates belong into the shared catalog, which is away; the next "
          "start takes it");
    QUIRE_RETURN_IF_ERROR(kept);
  }
  QUIRE_RETURN_IF_ERROR(store.put_meta(taken, path.string()));
  log_info("took the model's card into the store", {{"path", path.string()}});
  return true;
}

}  // namespace quire
