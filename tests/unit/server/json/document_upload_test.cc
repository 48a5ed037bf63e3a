#include "server/json/document_upload.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(Ndjson, SameDocumentsHoweverTheBytesArrive) {
  const std::string text =
      "{\"id\":\"a\",\"text\":\"one\"}\r\n\n  \n{\"id\":\"b\",\"text\":\"two "
      "ü\"}\n{\"id\":\"c\",\"text\":\"three\"}";
  for (std::size_t step = 1; step < text.size(); step += 3) {
    NdjsonReader r(10);
    for (std::size_t i = 0; i < text.size(); i += step)
      ASSERT_FALSE(r.feed(std::string_view(text).substr(i, step)));
    ASSERT_FALSE(r.finish());
    const auto documents = r.take();
    ASSERT_EQ(documents.size(), 3u) << step;
    EXPECT_EQ(documents[1].text, "two ü");
  }
}

TEST(Ndjson, WrongLinesAreNamedAtOnce) {
  NdjsonReader a(10);
  const auto e = a.feed("{\"text\":\"a\"}\n{\"text\":}\n");
  ASSERT_TRUE(e);
  EXPECT_EQ(e->code, "invalid_json");
  EXPECT_EQ(e->path, "documents[1]");
  EXPECT_NE(e->message.find("line 2"), std::string::npos);
  NdjsonReader b(1);
  EXPECT_TRUE(b.feed("{\"text\":\"a\"}\n{\"text\":\"b\"}\n"));
}

TEST(Multipart, FilesAndFields) {
  const std::string body =
      "--B\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.md\"\r\nContent-Type: "
      "text/markdown\r\n\r\n# Head\r\n--B\r\n"
      "Content-Disposition: form-data; name=\"id\"\r\n\r\nmine\r\n--B\r\nContent-Disposition: "
      "form-data; name=\"pinned\"\r\n\r\ntrue\r\n--B--\r\n";
  DocumentBatch b;
  const auto e = read_multipart(body, "B", 4, b);
  ASSERT_FALSE(e) << e->message;
  ASSERT_EQ(b.documents.size(), 1u);
  EXPECT_EQ(b.documents[0].text, "# Head");
  EXPECT_EQ(b.documents[0].id, "mine");
  EXPECT_TRUE(b.options.pinned);
}

TEST(Multipart, BrokenBodiesAreRefused) {
  for (const auto* body :
       {"", "--B", "--B\r\nX: y", "--B\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\nx",
        "--B--", "--B\r\n\r\nx\r\n--B--",
        "--B\r\nContent-Disposition: form-data; name=\"color\"\r\n\r\nx\r\n--B--"}) {
    DocumentBatch b;
    EXPECT_TRUE(read_multipart(body, "B", 4, b)) << body;
  }
}

}  // namespace
}  // namespace quire
