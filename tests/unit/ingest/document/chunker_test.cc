#include "ingest/document/chunker.h"

#include "ingest/document/utf8.h"
#include "tests/support/harness/ingest_fixture.h"
#include "tests/support/harness/tokenizer_files.h"

namespace quire {
namespace {

using test::prose;

class ChunkerTest : public ::testing::Test {
 protected:
  ChunkerTest() {
    const std::string folder = std::string(QUIRE_SOURCE_DIR) + "/models/demo";
    auto tokenizer = load_tokenizer(folder);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().to_string();
    tokenizer_ = std::move(*tokenizer);
    format_ = std::make_unique<PromptFormat>(
        *PromptFormat::parse(test::kTestPrompt, "", tokenizer_));
  }
  Result<std::vector<Chunk>> cut(std::string_view text, ChunkingOptions options,
                                 std::string_view title = "") {
    return chunk_text(*tokenizer_, *format_, title, text, options, limits_);
  }
  /// Checks what holds for every way of cutting.
  void check(const std::string& text, const ChunkingOptions& options, std::string_view title) {
    auto chunks = cut(text, options, title);
    ASSERT_TRUE(chunks.ok()) << chunks.status().to_string();
    ASSERT_FALSE(chunks->empty());
    std::size_t covered = 0;
    for (const Chunk& c : *chunks) {
      ASSERT_LE(c.range.begin, covered) << "a hole";
      if (options.overlap_tokens == 0) {
        ASSERT_EQ(c.range.begin, covered) << "text twice";
      }
      ASSERT_GT(c.range.end, covered) << "no progress";
      covered = c.range.end;
      const std::string part = text.substr(c.range.begin, c.range.end - c.range.begin);
      ASSERT_FALSE(find_invalid_utf8(part)) << "cut inside a character";
      if (options.strategy != ChunkStrategy::kNone) {
        ASSERT_LE(c.token_ids.size(), static_cast<std::size_t>(options.max_tokens));
      }
      ASSERT_EQ(c.token_ids, format_->document(title, part)->ids);
    }
    ASSERT_EQ(covered, text.size());
    auto again = cut(text, options, title);
    ASSERT_EQ(again->size(), chunks->size());
    for (std::size_t i = 0; i < chunks->size(); ++i)
      ASSERT_EQ((*again)[i].range, (*chunks)[i].range);
  }

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<PromptFormat> format_;
  ChunkLimits limits_{2047, 131072};
};

TEST_F(ChunkerTest, ChunksCoverTheTextAndNeverExceedTheLimit) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    std::mt19937_64 rng(seed);
    std::string text = prose(1 + rng() % 700, seed);
    if (seed % 5 == 1) text = std::string(rng() % 900, 'x') + text;  // has no place to cut
    if (seed % 5 == 2) text += std::string(rng() % 300, '\n');
    if (seed % 5 == 3)
      text.insert(code_point_floor(text, text.size() / 2), "\n# Heading\n\n## Deeper\ntext\n");
    ChunkingOptions o;
    o.strategy = static_cast<ChunkStrategy>(seed % 4);
    o.max_tokens = static_cast<std::int32_t>(24 + rng() % 300);
    if (o.strategy == ChunkStrategy::kTokens)
      o.overlap_tokens = static_cast<std::int32_t>(rng() % 3 * 5);
    if (o.strategy == ChunkStrategy::kSeparator) o.separator = seed % 8 < 4 ? "\n\n" : ". ";
    if (o.strategy == ChunkStrategy::kNone)
      text = code_point_floor(text, 2000) < text.size()
                 ? text.substr(0, code_point_floor(text, 2000))
                 : text;
    SCOPED_TRACE(testing::Message() << "seed " << seed << " " << describe(o));
    check(text, o, seed % 2 ? "A title" : "");
  }
}

TEST_F(ChunkerTest, RandomUnicodeIsNeverCutInsideACharacter) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    std::mt19937_64 rng(seed);
    std::string text;
    static constexpr std::string_view kGlyphs[] = {
        "\xF0\x9F\x98\x80", "\xE4\xB8\xAD", "\xC3\xA9",    "a", " ",
        "\xE3\x80\x82",     "\xCC\x81",     "\xEF\xBB\xBF"};
    for (int i = 0; i < 400; ++i) text += kGlyphs[rng() % std::size(kGlyphs)];
    ChunkingOptions o;
    o.max_tokens = 16 + static_cast<std::int32_t>(rng() % 40);
    SCOPED_TRACE(seed);
    check(text, o, "");
  }
}

TEST_F(ChunkerTest, CutsAtParagraphsRatherThanInSentences) {
  std::string text;
  for (int i = 0; i < 6; ++i) text += prose(20, 1).substr(0, 90) + " tail.\n\n";
  ChunkingOptions o;
  o.max_tokens = 160;
  auto chunks = cut(text, o);
  ASSERT_TRUE(chunks.ok());
  ASSERT_GT(chunks->size(), 1u);
  for (const Chunk& c : *chunks) EXPECT_EQ(text.substr(c.range.end - 2, 2), "\n\n");
}

TEST_F(ChunkerTest, OverlapRepeatsTheEndOfTheChunkBefore) {
  const std::string text = prose(600, 3);
  ChunkingOptions o;
  o.max_tokens = 100;
  o.overlap_tokens = 20;
  auto chunks = cut(text, o);
  ASSERT_TRUE(chunks.ok());
  ASSERT_GT(chunks->size(), 3u);
  for (std::size_t i = 1; i < chunks->size(); ++i) {
    EXPECT_LT((*chunks)[i].range.begin, (*chunks)[i - 1].range.end);
    EXPECT_GT((*chunks)[i].range.begin, (*chunks)[i - 1].range.begin);
  }
}

TEST_F(ChunkerTest, AnOverlapOfHalfAChunkStillMovesOn) {
  // A place to cut right behind the overlap must not be taken twice.
  std::string text = prose(60, 4) + "\n\n" + prose(300, 5);
  for (const char* title : {"", "A title of many words for a header that takes its part"})
    for (const std::int32_t max : {64, 100, 101, 200}) {
      ChunkingOptions o;
      o.max_tokens = max;
      o.overlap_tokens = max / 2;
      SCOPED_TRACE(describe(o) + " " + title);
      check(text, o, title);
      auto chunks = cut(text, o, title);
      ASSERT_GT(chunks->size(), 2u);
      EXPECT_LT((*chunks)[1].range.begin, (*chunks)[0].range.end);
    }
}

TEST_F(ChunkerTest, MarkdownChunksBeginAtHeadings) {
  const std::string text = "Intro line.\n\n# One\n" + prose(60, 1) +
                           "\n\n## One a\nshort\n\n# Two\n```\n# not a heading\n```\n" +
                           prose(30, 2) + "\n\nThree\n=====\nbody\n";
  ChunkingOptions o;
  o.strategy = ChunkStrategy::kMarkdown;
  o.max_tokens = 400;
  auto chunks = cut(text, o);
  ASSERT_TRUE(chunks.ok());
  std::vector<std::string> begins;
  for (const Chunk& c : *chunks) begins.push_back(text.substr(c.range.begin, 5));
  EXPECT_THAT(begins, testing::ElementsAre("Intro", "# One", "# Two", "Three"));
}

TEST_F(ChunkerTest, HeadingsOfMarkdown) {
  const std::string text =
      "---\ntitle: x\n---\n# A\n#no\n####### seven\n   ### C ###\n    # code\n~~~\n# "
      "in\n~~~\nB\n---\n\n---\n";
  std::vector<std::pair<std::string, int>> found;
  for (const MarkdownHeading& h : find_markdown_headings(text))
    found.emplace_back(text.substr(h.begin, text.find('\n', h.begin) - h.begin), h.depth);
  EXPECT_THAT(found, testing::ElementsAre(testing::Pair("# A", 1), testing::Pair("   ### C ###", 3),
                                          testing::Pair("B", 2)));
}

TEST(MarkdownMarks, NameThePathOfHeadings) {
  const std::string text =
      "before\n\n# A b #\ntext\n\n## C\n### D\n\nE f\n---\n```\n# no\n```\n#\n# \xC3\xA9";
  const auto begin = [&](const char* what) { return text.find(what); };
  EXPECT_EQ(markdown_marks(text), (std::vector<TextMark>{{begin("# A"), 0, "A b"},
                                                         {begin("## C"), 0, "A b > C"},
                                                         {begin("### D"), 0, "A b > C > D"},
                                                         {begin("E f"), 0, "A b > E f"},
                                                         {begin("#\n# \xC3"), 0, ""},
                                                         {begin("# \xC3"), 0, "\xC3\xA9"}}));
  EXPECT_TRUE(markdown_marks("").empty());
}

TEST(MarkdownMarks, AreNoMoreThanADocumentKeeps) {
  std::string text;
  for (int depth = 1; depth < 6; ++depth)
    text += std::string(static_cast<std::size_t>(depth), '#') + " " + std::string(500, 'a') + "\n";
  for (int i = 0; i < 20'000; ++i) text += "###### x\n";
  const auto marks = markdown_marks(text);
  EXPECT_GT(marks.size(), 1000u);
  EXPECT_TRUE(check_marks(marks, text.size()).ok());
  EXPECT_EQ(marks.back().heading, "");
}

/// A tokenizer with a token for each byte, also of white space, and with those of kTestPrompt.
std::shared_ptr<const Tokenizer> byte_tokenizer() {
  TokenizerFiles files;
  files.vocab_json = test::small_vocab_json({"he"});
  files.merges_txt = "h e\n";
  files.tokenizer_config =
      R"({"added_tokens_decoder":{"257":{"content":"<doc>","special":true},)"
      R"("258":{"content":"<q>","special":true},"259":{"content":"<a>","special":true},)"
      R"("260":{"content":"</a>","special":true}}})";
  auto made = make_tokenizer(files);
  EXPECT_TRUE(made.ok()) << made.status().to_string();
  return made.ok() ? std::move(made).value() : nullptr;
}

TEST_F(ChunkerTest, LongWhiteSpaceIsCutLikeOtherText) {
  tokenizer_ = byte_tokenizer();
  ASSERT_NE(tokenizer_, nullptr);
  auto format = PromptFormat::parse(test::kTestPrompt, "", tokenizer_);
  ASSERT_TRUE(format.ok()) << format.status().to_string();
  format_ = std::make_unique<PromptFormat>(std::move(*format));
  const std::string spaces(4000, ' ');
  for (const std::string& text : {"a" + spaces, "a" + spaces + "b", "word " + spaces + "\n\n"}) {
    for (const std::int32_t overlap : {0, 20}) {
      ChunkingOptions o;
      o.max_tokens = 128;
      o.overlap_tokens = overlap;
      check(text, o, "");
      EXPECT_LE(cut(text, o)->size(), text.size() / 64 + 2) << text.substr(0, 6) << overlap;
    }
  }
}

TEST_F(ChunkerTest, SeparatorPiecesJoinBlankOnes) {
  ChunkingOptions o;
  o.strategy = ChunkStrategy::kSeparator;
  o.separator = "|";
  const std::string text = "first| |second||third|";
  auto chunks = cut(text, o);
  ASSERT_TRUE(chunks.ok());
  std::vector<std::string> parts;
  for (const Chunk& c : *chunks)
    parts.push_back(text.substr(c.range.begin, c.range.end - c.range.begin));
  EXPECT_THAT(parts, testing::ElementsAre("first| |", "second||", "third|"));
}

TEST_F(ChunkerTest, EveryChunkCarriesTheTitle) {
  ChunkingOptions o;
  o.max_tokens = 64;
  auto chunks = cut(prose(200, 5), o, "Zelmora");
  auto header = format_->document("Zelmora", "");
  ASSERT_TRUE(chunks.ok());
  for (const Chunk& c : *chunks)
    EXPECT_TRUE(std::equal(c.token_ids.begin(), c.token_ids.begin() + 2, header->ids.begin()));
}

TEST(LeftContextTest, WindowsHoldTheirTokensAndBeginInTheOneBefore) {
  std::mt19937 rng(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<Chunk> chunks(rng() % 20);
    for (Chunk& c : chunks) c.token_ids.assign(1 + rng() % 60, 7);
    const std::int64_t window = 20 + static_cast<std::int64_t>(rng() % 200);
    set_left_context(chunks, window);
    std::size_t first = 0;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      ASSERT_LE(chunks[i].left_chunks, i);
      const std::size_t begin = i - chunks[i].left_chunks;
      const auto before = static_cast<std::int64_t>(left_context(chunks, i).size());
      const auto own = static_cast<std::int64_t>(chunks[i].token_ids.size());
      EXPECT_TRUE(chunks[i].left_chunks == 0 || before + own <= window);
      if (i > 0 && begin == first) {
        EXPECT_EQ(chunks[i].left_chunks, chunks[i - 1].left_chunks + 1) << "rows are gone on from";
      }
      if (begin > first) {
        std::int64_t last = own;
        for (std::size_t k = first; k < i; ++k)
          last += static_cast<std::int64_t>(chunks[k].token_ids.size());
        EXPECT_GT(last, window) << "a window ends where the next chunk has no room";
        EXPECT_LE(before, window / 4);
      }
      first = begin;
    }
  }
}

TEST(LeftContextTest, NoneWithoutTokens) {
  std::vector<Chunk> chunks(3);
  for (Chunk& c : chunks) c.token_ids = {1, 2, 3};
  set_left_context(chunks, 100);
  EXPECT_EQ(chunks[2].left_chunks, 2u);
  set_left_context(chunks, 0);
  for (const Chunk& c : chunks) EXPECT_EQ(c.left_chunks, 0u);
}

TEST_F(ChunkerTest, SaysWhichLimitIsBroken) {
  const auto field = [&](std::string_view text, ChunkingOptions o, std::string_view title = "") {
    return cut(text, o, title).status().field();
  };
  ChunkingOptions none;
  none.strategy = ChunkStrategy::kNone;
  EXPECT_EQ(field(prose(3000, 1), none), "text");
  limits_.document_tokens = 100;
  EXPECT_EQ(field(prose(300, 1), {}), "text");
  EXPECT_EQ(field(std::string(100 * 128 + 1, 'a'), {}), "text");
  limits_.document_tokens = 131072;
  ChunkingOptions small;
  small.max_tokens = 15;
  EXPECT_EQ(field("x", small), "chunking.max_tokens");
  small.max_tokens = 32;
  EXPECT_EQ(field("x", small, prose(40, 1)), "title");
  small.overlap_tokens = 17;
  EXPECT_EQ(field("x", small), "chunking.overlap_tokens");
  ChunkingOptions sep;
  sep.strategy = ChunkStrategy::kSeparator;
  EXPECT_EQ(field("x", sep), "chunking.separator");
  ChunkingOptions stray;
  stray.separator = "x";
  EXPECT_EQ(field("x", stray), "chunking.separator");
  const std::string text = "ab" + prose(3000, 1);
  const TextRange ranges[] = {{0, 2}, {2, text.size()}};
  EXPECT_EQ(chunk_given(*tokenizer_, *format_, "", text, ranges, limits_).status().field(),
            "chunks[1]");
}

}  // namespace
}  // namespace quire
