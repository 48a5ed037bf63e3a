#include "server/http/gzip_writer.h"

#include <gtest/gtest.h>

#include "server/http/gzip_reader.h"

namespace quire {
namespace {

std::string expanded(const std::string& bytes) {
  GzipReader reader;
  std::string text;
  const Status status = reader.feed(bytes, [&](std::string_view piece) {
    text.append(piece);
    return true;
  });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(reader.complete());
  return text;
}

TEST(GzipWriter, WhatIsCompressedComesBack) {
  std::string text;
  for (int i = 0; i < 50'000; ++i) text += "line " + std::to_string(i * 7919) + "\n";
  const std::string bytes = gzip_of(text);
  EXPECT_LT(bytes.size(), text.size() / 2);
  EXPECT_EQ(expanded(bytes), text);
  EXPECT_EQ(gzip_of(text), bytes) << "the same text gave other bytes";
  for (const std::string small : {"", "x"}) EXPECT_EQ(expanded(gzip_of(small)), small);
}

TEST(GzipWriter, AcceptEncodingDecides) {
  const auto takes = [](const std::string& field) {
    Headers headers;
    headers.add("Accept-Encoding", field);
    return takes_gzip(headers);
  };
  for (const char* field : {"gzip", "GZIP", "br, gzip", "gzip;q=0.001", "deflate , gzip ; q=1", "*",
                            "x-gzip", "br;q=1, *;q=0.5", "identity;q=0, gzip"})
    EXPECT_TRUE(takes(field)) << field;
  for (const char* field : {"", ",", "br", "gzip;q=0", "gzip;q=0.000", "*;q=0", "gzip;q=0, *",
                            "gzipped", "not gzip", ";q=1"})
    EXPECT_FALSE(takes(field)) << field;
  EXPECT_FALSE(takes_gzip(Headers()));
}

}  // namespace
}  // namespace quire
