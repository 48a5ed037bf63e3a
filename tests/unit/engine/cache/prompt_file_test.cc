#include "engine/cache/prompt_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>

#include "engine/cache/prefix_cache.h"
#include "tests/support/model_files.h"

namespace quire {
namespace {

constexpr PageFormat kFormat{.num_kv_heads = 2, .head_dim = 16, .dtype = DType::kF16};
constexpr std::int32_t kLayers = 3;
constexpr std::int64_t kSlotBytes = 8192, kHeadBytes = 4096;

class PromptFileTest : public ::testing::Test {
 protected:
  std::string path() const { return (folder_.path() / "prompts" / "pages").string(); }
  static PromptFile::Shape shape(const std::string& model = "model") {
    return {.fingerprint = sha256(std::string_view(model)), .page = kFormat, .num_layers = kLayers};
  }
  std::unique_ptr<PromptFile> open(std::int32_t slots = 100, const std::string& model = "model") {
    auto file = PromptFile::open(path(), shape(model), kHeadBytes + slots * kSlotBytes);
    EXPECT_TRUE(file.ok()) << file.status().to_string();
    return file.ok() ? std::move(*file) : nullptr;
  }
  static Digest name(const std::string& text) { return sha256(std::string_view(text)); }
  static PromptPage page(const std::string& key, const std::string& parent = "") {
    PromptPage out{.key = name(key), .parent = {}, .token_ids = {}, .rows = {}};
    if (!parent.empty()) out.parent = name(parent);
    out.token_ids.resize(kPageTokens);
    std::iota(out.token_ids.begin(), out.token_ids.end(), static_cast<std::int32_t>(key[0]));
    out.rows.assign(static_cast<std::size_t>(kFormat.page_bytes() * kLayers),
                    static_cast<std::byte>(key[0]));
    return out;
  }
  struct Loaded {
    std::int32_t slot;
    PromptPage page;
  };
  static std::vector<Loaded> load(const PromptFile& file) {
    std::vector<Loaded> out;
    file.load([&](std::int32_t slot, const PromptPage& page) {
      out.push_back({slot, page});
      return true;
    });
    return out;
  }
  void damage(std::int64_t at) {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const char old = static_cast<char>(file.get());
    file.seekp(at);
    file.put(static_cast<char>(old ^ 4));
  }

  testing::TempFolder folder_;
};

TEST_F(PromptFileTest, PagesAreReadBackInTheOrderOfTheirPrompts) {
  {
    auto file = open();
    file->write(5, page("c", "b"));
    file->write(0, page("b", "a"));
    file->write(3, page("a"));
    file->write(1, page("z"));
  }
  auto file = open();
  const std::vector<Loaded> loaded = load(*file);
  ASSERT_EQ(loaded.size(), 4u);
  std::set<Digest> known = {Digest{}};
  for (const Loaded& l : loaded) {
    EXPECT_TRUE(known.contains(l.page.parent));
    known.insert(l.page.key);
  }
  for (const Loaded& l : loaded) {
    if (l.page.key != name("c")) continue;
    EXPECT_EQ(l.slot, 5);
    EXPECT_EQ(l.page.token_ids, page("c").token_ids);
    EXPECT_EQ(l.page.rows, page("c").rows);
  }
  struct stat info {};
  ASSERT_EQ(::stat(path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(file->bytes(), kHeadBytes + 6 * kSlotBytes);
}

TEST_F(PromptFileTest, AnOverwrittenSlotHoldsTheNewPageAlone) {
  auto file = open();
  file->write(0, page("a"));
  file->write(0, page("b"));
  file->flush();
  const auto loaded = load(*file);
  ASSERT_EQ(loaded.size(), 1u);
  EXPECT_EQ(loaded[0].page.key, name("b"));
}

TEST_F(PromptFileTest, ADamagedPageIsNotThereAndNeitherAreItsContinuations) {
  for (const std::int64_t at :
       {std::int64_t{0}, std::int64_t{10}, std::int64_t{60}, std::int64_t{100}, std::int64_t{155},
        std::int64_t{160}, std::int64_t{160} + kFormat.page_bytes() * kLayers - 1}) {
    std::filesystem::remove(path());
    {
      auto file = open();
      file->write(0, page("a"));
      file->write(1, page("b", "a"));
      file->write(2, page("c", "b"));
      file->write(3, page("d", "a"));
    }
    damage(kHeadBytes + kSlotBytes + at);  // "b"
    const auto loaded = load(*open());
    ASSERT_EQ(loaded.size(), 2u) << at;
    EXPECT_EQ(loaded[0].page.key, name("a"));
    EXPECT_EQ(loaded[1].page.key, name("d"));
  }
}

TEST_F(PromptFileTest, ContinuationsOfARefusedPageAreNotRead) {
  auto file = open();
  file->write(0, page("a"));
  file->write(1, page("b", "a"));
  file->flush();
  int asked = 0;
  file->load([&](std::int32_t, const PromptPage&) {
    ++asked;
    return false;
  });
  EXPECT_EQ(asked, 1);
}

TEST_F(PromptFileTest, PagesThatFollowEachOtherInACircleAreNotRead) {
  auto file = open();
  file->write(0, page("a", "b"));
  file->write(1, page("b", "a"));
  file->write(2, page("c"));
  file->flush();
  EXPECT_EQ(load(*file).size(), 1u);
}

TEST_F(PromptFileTest, AnotherModelAndADamagedHeaderStartAnew) {
  open()->write(0, page("a"));
  EXPECT_EQ(load(*open()).size(), 1u);
  EXPECT_EQ(load(*open(100, "other")).size(), 0u);
  auto file = open();
  EXPECT_EQ(file->bytes(), kHeadBytes);
  file->write(0, page("a"));
  file.reset();
  damage(9);
  EXPECT_EQ(load(*open()).size(), 0u);
}

TEST_F(PromptFileTest, ATornFileAndASmallerLimitKeepWhatIsWhole) {
  {
    auto file = open();
    file->write(0, page("a"));
    file->write(1, page("b", "a"));
    file->write(2, page("c", "b"));
  }
  std::filesystem::resize_file(path(),
                               static_cast<std::uintmax_t>(kHeadBytes + 2 * kSlotBytes - 2500));
  EXPECT_EQ(load(*open()).size(), 1u);
  EXPECT_EQ(load(*open(1)).size(), 1u);
  EXPECT_EQ(std::filesystem::file_size(path()),
            static_cast<std::uintmax_t>(kHeadBytes + kSlotBytes));
}

TEST_F(PromptFileTest, ALimitBelowOnePageIsRefusedByName) {
  const auto file = PromptFile::open(path(), shape(), kHeadBytes + kSlotBytes - 1);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().field(), "disk.prompt_bytes");
}

TEST_F(PromptFileTest, AFailedWriteEndsWriting) {
  auto full = PromptFile::open("/dev/full", shape(), kHeadBytes + 4 * kSlotBytes);
  EXPECT_FALSE(full.ok());  // not even its header can be written
  auto file = open();
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small = old;
  small.rlim_cur = static_cast<rlim_t>(kHeadBytes + kSlotBytes);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  file->write(0, page("a"));
  file->write(1, page("b", "a"));
  file->flush();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, ignored);
  EXPECT_TRUE(file->failed());
  EXPECT_FALSE(file->ready());
  EXPECT_EQ(load(*file).size(), 1u);
}

/// Prefixes with slots on disk, without model or file.
class SavedPrefixTest : public ::testing::Test {
 protected:
  SavedPrefixTest() : pool_(kFormat, 0) {}
  std::int64_t column() const { return kFormat.page_bytes() * kLayers; }
  void add(PrefixCache& prefixes, const std::string& prompt, std::int32_t pages, bool save = true) {
    WorkingCache cache(pool_, kLayers);
    std::vector<std::int32_t> positions(static_cast<std::size_t>(pages * kPageTokens));
    std::iota(positions.begin(), positions.end(), 0);
    for (std::int32_t layer = 0; layer < kLayers; ++layer)
      ASSERT_TRUE(cache.add_rows(layer, positions).ok());
    prefixes.add(sha256(std::string_view(prompt)), positions, cache, save);
  }
  PagePool pool_;
};

TEST_F(SavedPrefixTest, EachPageIsSavedOnceAndAfterItsParent) {
  PrefixCache prefixes(pool_, kLayers, 100 * column());
  prefixes.save_to(10);
  add(prefixes, "a", 3);
  add(prefixes, "a", 4);
  add(prefixes, "b", 2, false);
  std::set<std::int32_t> slots;
  Digest parent;
  for (int i = 0; i < 4; ++i) {
    const auto page = prefixes.next_unsaved();
    ASSERT_TRUE(page);
    EXPECT_EQ(page->parent, parent);
    EXPECT_EQ(page->pages.size(), static_cast<std::size_t>(kLayers));
    parent = page->key;
    slots.insert(page->slot);
  }
  EXPECT_EQ(slots, (std::set<std::int32_t>{0, 1, 2, 3}));
  EXPECT_FALSE(prefixes.next_unsaved());
}

TEST_F(SavedPrefixTest, NothingIsSavedWithoutSlots) {
  PrefixCache prefixes(pool_, kLayers, 100 * column());
  add(prefixes, "a", 3);
  EXPECT_FALSE(prefixes.next_unsaved());
}

TEST_F(SavedPrefixTest, FullSlotsGoToThePromptUsedLast) {
  PrefixCache prefixes(pool_, kLayers, 100 * column());
  prefixes.save_to(3);
  add(prefixes, "a", 3);
  while (prefixes.next_unsaved()) {
  }
  add(prefixes, "b", 2);
  const auto first = prefixes.next_unsaved(), second = prefixes.next_unsaved();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first->slot, 2);  // the end of "a"
  EXPECT_EQ(second->slot, 1);
  // A prompt longer than the file keeps its beginning.
  add(prefixes, "c", 5);
  int saved = 0;
  while (prefixes.next_unsaved()) ++saved;
  EXPECT_EQ(saved, 3);
}

TEST_F(SavedPrefixTest, TheSlotOfAnEvictedPageIsFree) {
  PrefixCache prefixes(pool_, kLayers, 3 * column());
  prefixes.save_to(3);
  add(prefixes, "a", 2);
  while (prefixes.next_unsaved()) {
  }
  add(prefixes, "b", 3);  // evicts "a"
  std::set<std::int32_t> slots;
  while (const auto page = prefixes.next_unsaved()) slots.insert(page->slot);
  EXPECT_EQ(slots.size(), 3u);
}

TEST_F(SavedPrefixTest, RestoredPagesServePromptsAndKeepTheirSlots) {
  std::vector<PromptPage> pages;
  std::vector<std::int32_t> slots;
  {
    PrefixCache prefixes(pool_, kLayers, 100 * column());
    prefixes.save_to(10);
    add(prefixes, "a", 3);
    while (const auto page = prefixes.next_unsaved()) {
      PromptPage out{.key = page->key, .parent = page->parent, .token_ids = {}, .rows = {}};
      out.token_ids.assign(page->token_ids.begin(), page->token_ids.end());
      out.rows.assign(static_cast<std::size_t>(column()), static_cast<std::byte>(page->slot + 7));
      pages.push_back(out);
      slots.push_back(page->slot);
    }
  }
  PrefixCache prefixes(pool_, kLayers, 2 * column());
  prefixes.save_to(10);
  const auto restore = [&](std::size_t i, std::int32_t slot) {
    return prefixes.restore(slot, pages[i].key, pages[i].parent, pages[i].token_ids, pages[i].rows);
  };
  EXPECT_FALSE(restore(1, 4));  // its parent is not there
  EXPECT_TRUE(restore(0, 4));
  EXPECT_FALSE(restore(0, 5));  // there already
  EXPECT_TRUE(restore(1, 2));
  EXPECT_FALSE(restore(2, 3));  // the cache is full
  std::vector<std::int32_t> ids(3 * kPageTokens);
  std::iota(ids.begin(), ids.end(), 0);
  WorkingCache cache(pool_, kLayers);
  EXPECT_EQ(prefixes.take(sha256(std::string_view("a")), ids, 48, cache), 32);
  for (std::int32_t layer = 0; layer < kLayers; ++layer) {
    EXPECT_EQ(*static_cast<const char*>(cache.view(layer).pages[1]),
              static_cast<char>(slots[1] + 7));
  }
  EXPECT_FALSE(prefixes.next_unsaved());
  add(prefixes, "b", 2);
  std::set<std::int32_t> given;
  while (const auto page = prefixes.next_unsaved()) given.insert(page->slot);
  for (const std::int32_t slot : given) EXPECT_LT(slot, 5);
  EXPECT_EQ(given.size(), 2u);
}

}  // namespace
}  // namespace quire
