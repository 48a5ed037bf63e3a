/// A model card holds what Quire has measured of a model, so that it travels with the model's
/// files: retrieval heads, stable layers, the confidence of citations and fidelity certificates.
///
/// A card is the file `quire-card.json` beside the model. A service that has not seen a card takes
/// it into its store when it starts. What the store holds already stays: a calibration or
/// certificate of one's own outweighs the card's. Everything in a card is named by the digest of
/// the model, weights and KV dtype it was measured with, so a card beside other weights changes
/// nothing.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "cachestore/format/key.h"
#include "cachestore/store.h"
#include "fidelity/certificate.h"

namespace quire {

inline constexpr std::string_view kModelCardFile = "quire-card.json";

/// What was measured of one model with one kind of weights and KV.
struct ModelCardEntry {
  Digest fingerprint;                     ///< of everything that changes KV
  std::string selection_heads;            ///< encode_selection_heads(); empty: none
  std::string stable_layers;              ///< encode_stable_layers(); empty: none
  std::vector<Certificate> certificates;  ///< each names the model with its heads
  std::string citation_confidence = {};   ///< encode_citation_confidence(); empty: none
};

std::string model_card_json(const std::vector<ModelCardEntry>& entries);
/// Parses a card. Errors: kCorruption naming the fault.
Result<std::vector<ModelCardEntry>> parse_model_card(std::string_view text);

/// Returns what the store holds of one model. `heads_fingerprint` is fingerprint_hex() of
/// certificate.h. Errors: kIo, kCorruption.
Result<ModelCardEntry> collect_model_card(Store& store, const Digest& fingerprint,
                                          const std::string& heads_fingerprint);

/// Returns where the card of the model at `model_path` (a folder or a file) lies, whether or not
/// there is one.
std::filesystem::path model_card_path(const std::filesystem::path& model_path);

/// Takes the card beside the model into the store unless it was taken before. Returns whether it
/// was taken now. A card that cannot be read leaves a line in the log and the store as it was.
/// Errors: those of the store.
Result<bool> adopt_model_card(Store& store, const std::filesystem::path& model_path);

}  // namespace quire
