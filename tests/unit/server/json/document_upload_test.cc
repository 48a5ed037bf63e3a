#include "server/json/document_upload.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

/// Gives `text` in steps of at most `step` bytes.
NdjsonReader::Source in_steps(std::string text, std::size_t step) {
  return [rest = std::move(text), step](std::span<char> out) mutable -> Result<std::size_t> {
    const std::size_t n = rest.copy(out.data(), std::min(step, out.size()));
    rest.erase(0, n);
    return n;
  };
}

TEST(Ndjson, SameDocumentsHoweverTheBytesArrive) {
  const std::string text =
      "{\"id\":\"a\",\"text\":\"one\"}\r\n\n  \n{\"id\":\"b\",\"text\":\"two "
      "ü\"}\n{\"id\":\"c\",\"text\":\"three\"}";
  for (std::size_t step = 1; step < text.size(); step += 3) {
    NdjsonReader r(in_steps(text, step));
    std::vector<std::string> texts;
    for (std::optional<DocumentInput> document;;) {
      ASSERT_FALSE(r.next(document));
      if (!document) break;
      texts.push_back(*document->text);
    }
    EXPECT_EQ(texts, (std::vector<std::string>{"one", "two ü", "three"})) << step;
    EXPECT_EQ(r.num_documents(), 3u);
  }
}

TEST(Ndjson, LinesLongerThanABufferAreWhole) {
  std::string text;
  for (int i = 0; i < 3; ++i)
    text += "{\"text\":\"" + std::string(300'000, static_cast<char>('a' + i)) + "\"}\n";
  NdjsonReader r(in_steps(text, SIZE_MAX));
  for (int i = 0; i < 3; ++i) {
    std::optional<DocumentInput> document;
    ASSERT_FALSE(r.next(document));
    ASSERT_TRUE(document);
    EXPECT_EQ(*document->text, std::string(300'000, static_cast<char>('a' + i)));
  }
}

TEST(Ndjson, WrongLinesAreNamed) {
  NdjsonReader a(in_steps("{\"text\":\"a\"}\n\n{\"text\":}\n", 5));
  std::optional<DocumentInput> document;
  ASSERT_FALSE(a.next(document));
  const auto e = a.next(document);
  ASSERT_TRUE(e);
  EXPECT_EQ(e->code, "invalid_json");
  EXPECT_EQ(e->path, "documents[1]");
  EXPECT_NE(e->message.find("line 3"), std::string::npos);
  NdjsonReader b([](std::span<char>) -> Result<std::size_t> { return Status::io("gone"); });
  const auto lost = b.next(document);
  ASSERT_TRUE(lost);
  EXPECT_EQ(lost->code, "storage_unavailable");
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

TEST(Multipart, WithoutAReaderFilesAreTexts) {
  DocumentBatch batch;
  ASSERT_FALSE(
      read_multipart("--B\r\nContent-Disposition: form-data; name=\"file\"; "
                     "filename=\"a.txt\"\r\n\r\n\xEF\xBB\xBFText.\r\n--B--",
                     "B", 9, batch));
  ASSERT_EQ(batch.files.size(), 1u);
  EXPECT_EQ(batch.files[0].name, "a.txt");
  EXPECT_FALSE(take_files_as_text(batch));
  EXPECT_TRUE(batch.files.empty());
  EXPECT_EQ(batch.documents.at(0).text, "Text.");
  EXPECT_EQ(batch.documents.at(0).title, "a.txt");
  EXPECT_EQ(batch.documents.at(0).metadata_json, R"({"filename":"a.txt"})");
}

TEST(Multipart, WithoutAReaderAFileThatIsNoTextIsRefused) {
  DocumentBatch batch;
  batch.documents.resize(2);
  batch.documents[0].text = "Text.";
  batch.documents[1].text = "%PDF-1.7\n\x93\x8c\x8b\x9e";
  batch.files = {{0, "a.txt"}, {1, "b.pdf"}};
  const auto error = take_files_as_text(batch);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code, "unsupported_media_type");
  EXPECT_EQ(error->path, "file");
  EXPECT_NE(error->message.find("b.pdf"), std::string::npos) << error->message;
  EXPECT_NE(error->message.find("quire-reader"), std::string::npos) << error->message;
}

TEST(Multipart, OneDocumentIsNoBatch) {
  const std::string part =
      "--B\r\nContent-Disposition: form-data; name=\"file\"; "
      "filename=\"a.txt\"\r\n\r\nText.\r\n";
  DocumentBatch one, two;
  ASSERT_FALSE(read_multipart(part + "--B--", "B", 9, one));
  EXPECT_FALSE(one.options.in_batch);
  ASSERT_FALSE(read_multipart(part + part + "--B--", "B", 9, two));
  EXPECT_TRUE(two.options.in_batch);
}

TEST(Multipart, APutTakesOneDocumentOfItsId) {
  const std::string part =
      "--B\r\nContent-Disposition: form-data; name=\"file\"; "
      "filename=\"a.txt\"\r\n\r\nText.\r\n";
  const auto id_field = [](const std::string& id) {
    return "--B\r\nContent-Disposition: form-data; name=\"id\"\r\n\r\n" + id + "\r\n";
  };
  DocumentBatch batch;
  ASSERT_FALSE(read_multipart_put(part + "--B--", "B", "mine", batch));
  ASSERT_EQ(batch.documents.size(), 1u);
  EXPECT_EQ(batch.documents[0].id, "mine");
  EXPECT_EQ(batch.files.at(0).name, "a.txt");
  EXPECT_FALSE(batch.options.in_batch);
  DocumentBatch same, other, two, many;
  EXPECT_FALSE(read_multipart_put(id_field("mine") + part + "--B--", "B", "mine", same));
  EXPECT_EQ(read_multipart_put(id_field("yours") + part + "--B--", "B", "mine", other)->path, "id");
  EXPECT_EQ(read_multipart_put(part + part + "--B--", "B", "mine", two)->path, "documents");
  EXPECT_EQ(read_multipart_put(part + part + part + "--B--", "B", "mine", many)->path, "documents");
}

}  // namespace
}  // namespace quire
