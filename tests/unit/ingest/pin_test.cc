// Pins keep to their share, through the gate and through every caller of it.
#include "ingest/admission/pin_gate.h"

#include "tests/support/harness/ingest_fixture.h"

namespace quire {
namespace {

using namespace test;

/// Allows this many bytes to be pinned in addition.
PinGate::Ask room_for(std::uint64_t disk, std::uint64_t dram) {
  return [disk, dram](const PinBytes& more) {
    return more.disk > disk || more.dram > dram ? Status::exhausted("no room for pins") : Status();
  };
}

TEST(PinGate, WhatIsGrantedCountsUntilItIsGivenBack) {
  PinGate gate(room_for(100, 50));
  {
    auto first = gate.grant({60, 0});
    ASSERT_OK(first);
    const auto refused = gate.grant({41, 0});
    EXPECT_EQ(refused.code(), Code::kResourceExhausted);
    EXPECT_EQ(refused.status().field(), "pinned");
    auto second = gate.grant({40, 50});
    ASSERT_OK(second);
    EXPECT_EQ(gate.grant({0, 1}).code(), Code::kResourceExhausted);
    const PinGate::Grant moved = std::move(*second);
    EXPECT_EQ(gate.grant({1, 0}).code(), Code::kResourceExhausted)
        << "a moved grant is the same grant";
  }
  EXPECT_OK(gate.grant({100, 50}));
}

TEST(PinGate, WithoutAnyoneToAskAllIsGranted) {
  PinGate gate({});
  EXPECT_OK(gate.grant({~std::uint64_t{0}, 1}));
}

class PinTest : public IngestTest {
 protected:
  void open_with(PinGate::Ask ask) {
    options_.may_pin = std::move(ask);
    open();
  }
  /// Posts a document as pinned and returns the outcome.
  std::string post_pinned(const std::string& id, const std::string& text,
                          const std::string& tier = "") {
    BatchOptions o;
    o.pinned = true;
    o.tier = tier;
    const JobSnapshot job = put(one(doc(id, text)), o);
    const JobItem& item = job.results.at(0);
    return item.error ? item.error->code + " " + item.error->param
                      : std::string(item_result_name(item.result));
  }
};

TEST_F(PinTest, ADocumentThatWouldBeTooMuchIsRefusedBeforeAnythingIsComputed) {
  open_with(room_for(0, ~std::uint64_t{0}));
  EXPECT_EQ(post_pinned("a", prose(50, 1)), "cache_full pinned");
  EXPECT_EQ(engine_->prefills(), 0);
  EXPECT_EQ(service_->documents().get("default", "a").code(), Code::kNotFound);
  put(one(doc("a", prose(50, 1))));
  EXPECT_EQ(post_pinned("a", prose(50, 1)), "cache_full pinned") << "unchanged, but not pinned yet";
  DocumentPatch pin;
  pin.pinned = true;
  const auto refused = service_->documents().patch("default", "a", pin);
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(refused.status().field(), "pinned");
  EXPECT_FALSE(service_->documents().get("default", "a")->pinned);
}

TEST_F(PinTest, ADocumentFromElsewhereIsPinnedAsAPostIs) {
  std::uint64_t room = 0;
  open_with([&](const PinBytes& more) {
    return more.disk > room ? Status::exhausted("no room for pins") : Status();
  });
  put(one(doc("a", prose(50, 1))));
  auto document = store_->get_document("default", "a");
  ASSERT_OK(document);
  const std::uint64_t bytes = document->num_tokens *
                              static_cast<std::uint64_t>(engine_->info().kv_bytes_per_token);
  EXPECT_OK(service_->admit(*document, 1));
  document->pinned = true;
  const auto refused = service_->admit(*document, 1);
  EXPECT_EQ(refused.code(), Code::kResourceExhausted);
  EXPECT_EQ(refused.status().field(), "pinned");
  room = bytes;
  const auto held = service_->admit(*document, 1);
  ASSERT_OK(held);
  document->id = "b";
  EXPECT_EQ(service_->admit(*document, 1).code(), Code::kResourceExhausted);
  room = 2 * bytes;
  EXPECT_OK(service_->admit(*document, 1));
}

TEST_F(PinTest, KvThatIsToComeIsAskedForByItsTokens) {
  std::uint64_t asked = 0, room = 0;
  open_with([&](const PinBytes& more) {
    asked = more.disk;
    return more.disk > room ? Status::exhausted("no room for pins") : Status();
  });
  BatchOptions lazy;
  lazy.kv = KvPolicy::kLazy;
  put(one(doc("a", prose(100, 1))), lazy);
  DocumentPatch pin;
  pin.pinned = true;
  EXPECT_EQ(service_->documents().patch("default", "a", pin).code(), Code::kResourceExhausted);
  const std::uint64_t bytes = service_->documents().get("default", "a")->tokens *
                              static_cast<std::uint64_t>(engine_->info().kv_bytes_per_token);
  EXPECT_EQ(asked, bytes);
  room = bytes;
  EXPECT_TRUE(service_->documents().patch("default", "a", pin)->pinned);
}

TEST_F(PinTest, OnlyAPinToMemoryTakesMemory) {
  open_with(room_for(~std::uint64_t{0}, 0));
  EXPECT_EQ(post_pinned("a", prose(50, 1), "dram"), "cache_full pinned");
  EXPECT_EQ(post_pinned("a", prose(50, 1), "disk"), "created");
  EXPECT_EQ(post_pinned("b", prose(50, 2)), "created");
}

TEST_F(PinTest, WhatIsPinnedIsNotAskedForAgain) {
  std::uint64_t asked = 0;
  std::uint64_t room = ~std::uint64_t{0};
  open_with([&](const PinBytes& more) {
    asked = more.disk;
    return more.disk > room ? Status::exhausted("no room for pins") : Status();
  });
  EXPECT_EQ(post_pinned("a", prose(100, 1)), "created");
  EXPECT_EQ(asked, service_->documents().get("default", "a")->tokens *
                       static_cast<std::uint64_t>(engine_->info().kv_bytes_per_token));
  room = 0;
  EXPECT_EQ(post_pinned("a", prose(100, 1)), "unchanged");
  EXPECT_EQ(post_pinned("a", prose(50, 2)), "updated") << "it takes less than before";
  EXPECT_EQ(post_pinned("a", prose(400, 2)), "cache_full pinned");
  DocumentPatch off, on;
  off.pinned = false;
  on.pinned = true;
  EXPECT_FALSE(service_->documents().patch("default", "a", off)->pinned);
  EXPECT_EQ(service_->documents().patch("default", "a", on).code(), Code::kResourceExhausted);
  room = ~std::uint64_t{0};
  EXPECT_TRUE(service_->documents().patch("default", "a", on)->pinned);
}

}  // namespace
}  // namespace quire
