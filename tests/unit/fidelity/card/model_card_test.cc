// A card carries what was measured of a model. It never replaces what a store measured itself, and
// a card that cannot be read changes nothing.
#include "fidelity/card/model_card.h"

#include <gtest/gtest.h>

#include <fstream>

#include "base/log.h"
#include "engine/calibrate/citation_calibration.h"
#include "engine/calibrate/head_calibration.h"
#include "engine/calibrate/stable_layers.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

using testing::TempFolder;

Certificate certificate(const std::string& model, const std::string& spec, bool passed) {
  Certificate c;
  c.fingerprint_hex = model;
  c.fingerprint = "m-" + model.substr(0, 8);
  c.strategy = spec.substr(0, spec.find(':'));
  c.spec = spec;
  c.passed = passed;
  c.max_drop = 0.02;
  c.ttft_ms = 1;
  c.recompute_ttft_ms = 2;
  return c;
}

class ModelCardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    StoreOptions o;
    o.path = (folder_.path() / "store").string();
    o.dram_bytes = 0;
    auto opened = open_store(o);
    ASSERT_TRUE(opened.ok()) << opened.status().to_string();
    store_ = std::move(*opened);
    set_log_sink(nullptr, LogLevel::kError);
  }
  void TearDown() override { set_log_sink(nullptr, LogLevel::kWarning); }

  void write(const std::string& text) {
    std::ofstream(folder_.path() / kModelCardFile, std::ios::binary) << text;
  }
  bool adopt() {
    const auto taken = adopt_model_card(*store_, folder_.path() / "model.gguf");
    EXPECT_TRUE(taken.ok()) << taken.status().to_string();
    return taken.ok() && *taken;
  }

  TempFolder folder_;
  std::unique_ptr<Store> store_;
  const Digest model_ = sha256("a model");
  const std::string with_heads_ = sha256("a model with heads").hex();
};

TEST_F(ModelCardTest, WhatOneStoreMeasuredAnotherHas) {
  write(model_card_json({{model_,
                          "1 words 3.1 4.0",
                          "1 3 4 17",
                          {certificate(with_heads_, "prophetkv:r=0.4", true),
                           certificate(with_heads_, "reuse", false)},
                          "1 1 2 3 4 5 6 7 8"}}));
  EXPECT_TRUE(adopt());
  const auto confidence = load_citation_confidence(*store_, model_);
  ASSERT_TRUE(confidence.ok()) << confidence.status().to_string();
  EXPECT_EQ(confidence->by_title.title, 8);
  const auto heads = load_selection_heads(*store_, model_, 5, 2);
  ASSERT_TRUE(heads.ok()) << heads.status().to_string();
  EXPECT_EQ(encode_selection_heads(*heads), "1 words 3.1 4.0");
  const auto layers = load_stable_layers(*store_, model_, 5);
  ASSERT_TRUE(layers.ok());
  EXPECT_EQ(layers->first, 3);
  const auto certificates = load_certificates(*store_, with_heads_);
  ASSERT_EQ(certificates.size(), 2u);
  EXPECT_EQ(passing_certificates(certificates, with_heads_).size(), 1u);

  const auto collected = collect_model_card(*store_, model_, with_heads_);
  ASSERT_TRUE(collected.ok());
  std::ifstream in(folder_.path() / kModelCardFile);
  EXPECT_EQ(model_card_json({*collected}),
            std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()));
}

TEST_F(ModelCardTest, WhatTheStoreMeasuredItselfStays) {
  const auto own = decode_selection_heads("1 words 1.1", 5, 2);
  ASSERT_TRUE(save_citation_confidence(*store_, model_, {{1, 1, 1, 1}, {1, 1, 1, 1}}).ok());
  ASSERT_TRUE(save_selection_heads(*store_, model_, *own).ok());
  ASSERT_TRUE(save_certificates(*store_, {certificate(with_heads_, "reuse", true)}).ok());
  write(model_card_json(
      {{model_,
        "1 words 3.1",
        "",
        {certificate(with_heads_, "reuse", false), certificate(with_heads_, "epic", false)},
        "1 2 2 2 2 2 2 2 2"}}));
  EXPECT_TRUE(adopt());
  EXPECT_EQ(encode_selection_heads(*load_selection_heads(*store_, model_, 5, 2)), "1 words 1.1");
  EXPECT_EQ(load_citation_confidence(*store_, model_)->by_words.share, 1);
  const auto certificates = load_certificates(*store_, with_heads_);
  ASSERT_EQ(certificates.size(), 2u);
  EXPECT_TRUE(certificates[0].passed);
}

TEST_F(ModelCardTest, CertificatesOfAnotherReadingComeBesideOnesOwn) {
  ASSERT_TRUE(save_certificates(*store_, {certificate(with_heads_, "reuse", false)}).ok());
  Certificate behind = certificate(with_heads_, "reuse", true);
  behind.read_behind = {ReadBehind::Kind::kLeadIn, sha256("lead-in")};
  write(model_card_json({{model_, "", "", {behind}}}));
  EXPECT_TRUE(adopt());
  const auto certificates = load_certificates(*store_, with_heads_);
  ASSERT_EQ(certificates.size(), 2u);
  EXPECT_EQ(certificates[1].read_behind, behind.read_behind);
  EXPECT_TRUE(certificates[1].passed);
}

TEST_F(ModelCardTest, ACardIsTakenOnce) {
  EXPECT_FALSE(adopt());  // there is none
  write(model_card_json({{model_, "1 words 3.1", "", {}}}));
  EXPECT_TRUE(adopt());
  ASSERT_TRUE(drop_selection_heads(*store_, model_).ok());
  EXPECT_FALSE(adopt());  // what was dropped afterwards does not come back
  EXPECT_EQ(load_selection_heads(*store_, model_, 5, 2).status().code(), Code::kNotFound);
  write(model_card_json({{model_, "1 words 4.1", "", {}}}));
  EXPECT_TRUE(adopt());
  EXPECT_TRUE(load_selection_heads(*store_, model_, 5, 2).ok());
}

TEST_F(ModelCardTest, AWrongCardChangesNothing) {
  const std::string good = model_card_json(
      {{model_, "1 words 3.1", "", {certificate(with_heads_, "reuse", true)}}});
  std::string other_member = good;
  other_member.replace(other_member.find("selection_heads"), 15, "selection_hands");
  std::string no_hex = good;
  no_hex.replace(no_hex.find(model_.hex()), 2, "xx");
  for (const std::string& text :
       {std::string(), std::string("{}"), good.substr(0, good.size() - 3), other_member, no_hex,
        R"({"format":"quire-model-card-1"})" + std::string(), std::string(2u << 20, ' ')}) {
    write(text);
    EXPECT_FALSE(adopt()) << text.substr(0, 200);
  }
  EXPECT_EQ(load_selection_heads(*store_, model_, 5, 2).status().code(), Code::kNotFound);
  EXPECT_TRUE(load_certificates(*store_, with_heads_).empty());
}

TEST(ModelCard, TheShippedCardCounts) {
  std::ifstream in(std::string(QUIRE_SOURCE_DIR) + "/configs/models/smollm2/quire-card.json");
  const auto card = parse_model_card(
      std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()));
  ASSERT_TRUE(card.ok()) << card.status().to_string();
  std::size_t passed = 0;
  for (const ModelCardEntry& e : *card) {
    for (const Certificate& c : e.certificates) {
      EXPECT_TRUE(holds_under(c, "")) << c.spec;
      EXPECT_TRUE(holds_under(c, "block_tokens=64")) << c.spec << " keeps all blocks";
      passed += passing_certificates({c}, c.fingerprint_hex).size();
    }
  }
  EXPECT_EQ(passed, 2u);
}

TEST_F(ModelCardTest, StandsBesideAFileAndInAFolder) {
  EXPECT_EQ(model_card_path(folder_.path()), folder_.path() / "quire-card.json");
  EXPECT_EQ(model_card_path(folder_.path() / "model.gguf"), folder_.path() / "quire-card.json");
}

}  // namespace
}  // namespace quire
