// specontext chooses by a retrieval head, or by the draft's attention where none is loaded
// (SpeContext).
#include "engine/retrieve/head/specontext.h"

namespace quire {
namespace {

OptionTable<SpeContextOptions> option_table() {
  return {
      budget_option({16, 1 << 20}),
      sink_option(),
      window_option("last tokens that are always attended to, the newest among them"),
      words_option("decode_resident", &SpeContextOptions::residency,
                   {{"auto", Residency::kWhatFits}, {"none", Residency::kNothing}},
                   "layers that stay on the device: those that fit, or none"),
      flag_option("decode_elastic", &SpeContextOptions::elastic,
                  "only what the step before did not want moves to the device; off: all that a "
                  "step wants (for comparison)"),
      number_option("decode_reuse", &SpeContextOptions::reuse, {1, 64},
                    "steps that a choice of rows serves; the window moves on meanwhile"),
      number_option("decode_tau", &SpeContextOptions::tau, {-1, 2},
                    "with decode_reuse: least mean cosine of the retrieval head's queries to those "
                    "that a choice goes by, for a KV head to go by it, too; above 1: never"),
      words_option("decode_head", &SpeContextOptions::input,
                   {{"auto", AskedInput::kAuto},
                    {"feature", AskedInput::kFeature},
                    {"embed", AskedInput::kEmbedding}},
                   "what the retrieval head sees of a token: its embedding and the model's states "
                   "at the one before, or its embedding; auto: what the head was made for"),
      number_option("decode_draft_layer", &SpeContextOptions::draft_layer, {0, 1024},
                    "where no retrieval head is loaded: the layer of the draft whose attention "
                    "chooses, from 1; 0: two thirds of the way up"),
  };
}

}  // namespace

void register_specontext(PlugRegistry<Retriever>& retrievers) {
  retrievers.add("specontext", option_table(), [](const SpeContextOptions& options) {
    return std::make_unique<SpeContextRetriever>(options);
  });
}

}  // namespace quire
