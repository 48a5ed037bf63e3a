#include "engine/answer/answer_text.h"

#include <gtest/gtest.h>

#include <random>

namespace quire {
namespace {

std::pair<std::string, bool> feed_all(const std::vector<std::string>& stops,
                                      const std::vector<std::string>& pieces) {
  StopMatcher matcher(stops);
  std::string out;
  for (const auto& p : pieces) {
    if (matcher.feed(p, out)) return {out, true};
  }
  matcher.flush(out);
  return {out, false};
}

TEST(StopMatcherTest, CutsAtAStopStringSplitOverPieces) {
  EXPECT_EQ(feed_all({"</a>"}, {"Par", "is<", "/", "a", "> more"}),
            std::make_pair(std::string("Paris"), true));
  EXPECT_EQ(feed_all({"\n\n"}, {"a\n", "b\n", "\nc"}), std::make_pair(std::string("a\nb"), true));
}

TEST(StopMatcherTest, ShowsWhatTurnsOutToBeNoStop) {
  EXPECT_EQ(feed_all({"</a>"}, {"x <", "/b> y"}), std::make_pair(std::string("x </b> y"), false));
  EXPECT_EQ(feed_all({"abc"}, {"ab"}), std::make_pair(std::string("ab"), false));
  EXPECT_EQ(feed_all({}, {"any", "thing"}), std::make_pair(std::string("anything"), false));
}

TEST(StopMatcherTest, TakesTheFirstOfSeveral) {
  EXPECT_EQ(feed_all({"cd", "b"}, {"abcd"}), std::make_pair(std::string("a"), true));
}

TEST(StopMatcherTest, HoldsBackNoMoreThanNeeded) {
  StopMatcher matcher({"</a>"});
  std::string out;
  EXPECT_FALSE(matcher.feed("hello <", out));
  EXPECT_EQ(out, "hello ");
}

TEST(StopMatcherTest, EqualsASearchOverTheWholeText) {
  std::mt19937 rng(3);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += static_cast<char>('a' + rng() % 3);
    std::vector<std::string> stops;
    for (int s = 0; s < 2; ++s) {
      std::string stop;
      for (unsigned i = 0; i < 1 + rng() % 4; ++i) stop += static_cast<char>('a' + rng() % 3);
      stops.push_back(stop);
    }
    std::vector<std::string> pieces;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t n = 1 + rng() % 5;
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    // A stop string counts once it is complete. Of those that are complete with the same piece, the
    // one that begins earliest counts.
    const auto [shown, stopped] = feed_all(stops, pieces);
    std::size_t first = std::string::npos;
    for (const auto& s : stops) first = std::min(first, text.find(s));
    ASSERT_EQ(stopped, first != std::string::npos) << text;
    ASSERT_TRUE(text.starts_with(shown));
    if (!stopped) {
      ASSERT_EQ(shown, text);
    } else {
      bool at_stop = false;
      for (const auto& s : stops) at_stop = at_stop || text.substr(shown.size()).starts_with(s);
      ASSERT_TRUE(at_stop) << text << " shown " << shown;
    }
  }
}

}  // namespace
}  // namespace quire
