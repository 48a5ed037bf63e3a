// Model cards: what an accepted card says must survive being written and read again. Everything
// else must be refused.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "engine/calibrate/citation_calibration.h"
#include "fidelity/card/model_card.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto card = quire::parse_model_card({reinterpret_cast<const char*>(data), size});
  if (!card.ok()) return 0;
  for (const quire::ModelCardEntry& entry : *card) {
    const auto confidence = quire::decode_citation_confidence(entry.citation_confidence);
    if (!confidence.ok()) continue;
    const std::string text = quire::encode_citation_confidence(*confidence);
    const auto back = quire::decode_citation_confidence(text);
    if (!back.ok() || quire::encode_citation_confidence(*back) != text) std::abort();
  }
  const std::string written = quire::model_card_json(*card);
  const auto again = quire::parse_model_card(written);
  if (!again.ok() || quire::model_card_json(*again) != written) std::abort();
  return 0;
}
