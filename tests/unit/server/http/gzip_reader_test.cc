#include "server/http/gzip_reader.h"

#include <gtest/gtest.h>

#include "tests/support/gzip_text.h"

namespace quire {
namespace {

using testing::gzip_text;

struct Expanded {
  std::string text;
  Status status;
  bool complete = false;
};

Expanded expand(std::string_view bytes, std::size_t step) {
  Expanded e;
  GzipReader reader;
  for (std::size_t at = 0; at < bytes.size() && e.status.ok(); at += step)
    e.status = reader.feed(bytes.substr(at, step), [&](std::string_view piece) {
      e.text.append(piece);
      return true;
    });
  e.complete = reader.complete();
  return e;
}

std::string long_text() {
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += "line " + std::to_string(i) + "\n";
  return text;
}

TEST(GzipReader, SameTextHoweverTheBytesArrive) {
  const std::string text = long_text();
  const std::string bytes = gzip_text(text);
  for (const std::size_t step : {std::size_t{1}, std::size_t{1000}, bytes.size()}) {
    const Expanded e = expand(bytes, step);
    EXPECT_TRUE(e.status.ok()) << e.status.message();
    EXPECT_TRUE(e.complete);
    EXPECT_EQ(e.text, text) << step;
  }
}

TEST(GzipReader, MembersFollowOneAnother) {
  const Expanded e = expand(gzip_text("one ") + gzip_text("") + gzip_text("two"), 3);
  EXPECT_TRUE(e.status.ok() && e.complete);
  EXPECT_EQ(e.text, "one two");
}

TEST(GzipReader, TruncatedAndDamagedBodies) {
  const std::string bytes = gzip_text(long_text());
  const Expanded cut = expand(std::string_view(bytes).substr(0, bytes.size() - 1), 1000);
  EXPECT_TRUE(cut.status.ok());
  EXPECT_FALSE(cut.complete);
  std::string damaged = bytes;
  damaged[damaged.size() - 5] = static_cast<char>(damaged[damaged.size() - 5] ^ 1);  // checksum
  EXPECT_EQ(expand(damaged, 1000).status.field(), "Content-Encoding");
  EXPECT_FALSE(expand("plain text", 100).status.ok());
  EXPECT_FALSE(expand(gzip_text("one") + "more", 100).status.ok());
  EXPECT_TRUE(expand("", 1).complete);
}

TEST(GzipReader, TheTakerCanStopABomb) {
  const std::string bytes = gzip_text(std::string(8 << 20, 'a'));
  ASSERT_LT(bytes.size(), 64u << 10);
  GzipReader reader;
  std::size_t seen = 0;
  EXPECT_TRUE(reader
                  .feed(bytes,
                        [&](std::string_view piece) {
                          seen += piece.size();
                          return seen < (1 << 20);
                        })
                  .ok());
  EXPECT_LT(seen, 2u << 20);
}

}  // namespace
}  // namespace quire
