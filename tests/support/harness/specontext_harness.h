/// A model with a retrieval head, and decoding with a retriever over its own sequence of random
/// keys, queries and states.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/residency/device_pool.h"
#include "engine/retrieve/head/specontext.h"
#include "tests/support/engine_harness.h"
#include "tests/support/harness/head_files.h"
#include "tests/support/harness/kernel_test_support.h"
#include "tests/support/host_compute.h"

namespace quire::testing {

/// A model of three layers with random weights in f32.
struct HeadedModel {
  explicit HeadedModel(std::int32_t window = 512) : folder(7, window) {
    ModelOptions options;
    options.weights = WeightFormat::kF32;
    model = std::move(*load_model(folder.path(), options));
    head = std::move(*RetrievalHead::load(files.path(), *model));
  }
  RandomModelFolder folder;
  HeadFolder files;
  std::unique_ptr<Model> model;
  std::unique_ptr<RetrievalHead> head;
};

/// A retriever over its own sequence; queries, keys and states are equal for all.
class HeadDecoding {
 public:
  static constexpr std::int32_t kLayers = 3, kHeads = 6, kKvHeads = 2, kDim = 16, kPrompt = 150;
  static constexpr std::size_t kQuery = kHeads * kDim;
  using Options = std::map<std::string, std::string, std::less<>>;

  static std::int32_t token(std::int32_t position) { return 300 + position * 37 % 3000; }
  static Options budget(int tokens, const char* head = "auto") {
    return {{"decode_budget", std::to_string(tokens)},
            {"decode_sink", "2"},
            {"decode_window", "6"},
            {"decode_head", head},
            {"decode_resident", "none"}};
  }

  HeadDecoding(const HeadedModel& model, std::string_view name, Options given,
               TransferStreams* lane = nullptr, std::int64_t device_bytes = 0,
               std::int32_t lacking_layer = -1, const RetainedRows* retained = nullptr)
      : device(device_bytes),
        retriever(std::move(*retrievers().make(name, PlugOptions(std::move(given))))),
        pool_(PageFormat{kKvHeads, kDim, DType::kF16}, 0),
        cache_(pool_, kLayers),
        model_(model),
        lacking_layer_(lacking_layer) {
    for (std::int32_t p = 0; p < kPrompt; ++p) add_row(p);
    // A retriever that knows no head, such as dense, is made beside those that do.
    const HeadDriven* const driven = capability<HeadDriven>(*retriever);
    HeadTrack track(*model_.head,
                    driven != nullptr ? driven->head_input(*model_.head) : HeadInput::kEmbedding);
    std::vector<std::int32_t> ids, positions;
    for (std::int32_t p = 0; p < kPrompt; ++p) {
      ids.push_back(token(p));
      positions.push_back(p);
    }
    EXPECT_TRUE(track.add_embedded(ids, positions).ok());
    SequenceContext context;
    context.compute = &host_compute();
    AssembledPrompt assembled;
    context.cache = &cache_;
    assembled.retained = retained;
    context.device = &device;
    context.transfers = lane;
    context.head = model_.head.get();
    assembled.head_track = &track;
    assembled.num_tokens = kPrompt;
    context.num_layers = kLayers;
    context.num_heads = kHeads;
    context.num_kv_heads = kKvHeads;
    context.head_dim = kDim;
    const Status s = retriever->prepare(context, assembled);
    EXPECT_TRUE(s.ok()) << s.to_string();
  }
  ~HeadDecoding() { retriever->synchronize(); }
  /// The retriever must be specontext.
  SpeContextRetriever& plug() { return dynamic_cast<SpeContextRetriever&>(*retriever); }

  /// Runs one token as DecodeBatch does, in the first `layers`. Returns the layers' outputs; empty
  /// where a layer failed, whose error is in `status`.
  std::vector<std::vector<float>> next(std::int32_t layers = kLayers) {
    const std::int32_t position = next_position_++;
    std::vector<std::vector<float>> outs(kLayers);
    status = retriever->begin_step(token(position), position);
    if (!status.ok()) return outs;
    add_row(position);
    for (std::int32_t layer = 0; layer < layers && status.ok(); ++layer) {
      const auto state = random_floats(
          48, static_cast<std::uint32_t>(7000 + position * kLayers + layer));
      if (HeadDriven* const driven = capability<HeadDriven>(*retriever)) {
        const auto wanted = driven->hidden_layers();
        if (std::find(wanted.begin(), wanted.end(), layer) != wanted.end())
          driven->take_hidden(layer, state.data());
      }
      outs[static_cast<std::size_t>(layer)].assign(kQuery, NAN);
      const auto q = query(layer, position);
      status = retriever->attend(step(layer, q, position, outs[static_cast<std::size_t>(layer)]));
      if (!status.ok()) outs[static_cast<std::size_t>(layer)].clear();
    }
    return outs;
  }
  static std::vector<float> query(std::int32_t layer, std::int32_t position) {
    return random_floats(kQuery, static_cast<std::uint32_t>(900 + position * kLayers + layer));
  }
  RetrieveStep step(std::int32_t layer, const std::vector<float>& q, std::int32_t position,
                    std::vector<float>& out) const {
    return {layer, q.data(),   position,    &cache_,        kHeads,
            kDim,  out.data(), DType::kF32, &host_compute()};
  }
  std::int32_t last_position() const { return next_position_ - 1; }
  const WorkingCache& cache() const { return cache_; }

  DevicePool device;
  std::unique_ptr<Retriever> retriever;
  Status status;

 private:
  void add_row(std::int32_t position) {
    for (std::int32_t layer = 0; layer < kLayers; ++layer) {
      // As after a selection per layer, one layer lacks every fifth token of the prompt.
      if (layer == lacking_layer_ && position < kPrompt && position % 5 == 3) continue;
      ASSERT_TRUE(cache_.add_rows(layer, std::span(&position, 1)).ok());
      const auto raw = random_floats(kKvHeads * 2 * kDim,
                                     static_cast<std::uint32_t>(position * kLayers + layer));
      ASSERT_TRUE(cache_
                      .place(layer, model_.model->rope(),
                             {raw.data(), 1, DType::kF32, 2 * kDim * 4, kDim * 4, kDim * 4},
                             cache_.num_rows(layer) - 1)
                      .ok());
    }
  }
  PagePool pool_;
  WorkingCache cache_;
  const HeadedModel& model_;
  const std::int32_t lacking_layer_;
  std::int32_t next_position_ = kPrompt;
};

}  // namespace quire::testing
