// Files of a form are read one after the other, as long as somebody wants them, and a file that
// becomes no document has its reason in the reply.
#include "server/handlers/uploaded_files.h"

#include <gtest/gtest.h>

#include "base/json_parse.h"
#include "tests/support/stub_app.h"

namespace quire {
namespace {

DocumentBatch three_files() {
  DocumentBatch batch;
  for (std::size_t i = 0; i < 3; ++i) {
    batch.documents.emplace_back().text = "text";
    batch.files.push_back({i, "file" + std::to_string(i) + ".txt"});
  }
  return batch;
}

TEST(UploadedFiles, NoMoreAreReadForAClientThatHasLeft) {
  const ReaderProcess none("/nonexistent/quire-reader");
  std::optional<Problem> problem;
  int asked = 0;
  const auto left = [&]() -> std::optional<Problem> {
    ++asked;
    return make_problem("draining", "the service is shutting down");
  };
  EXPECT_TRUE(read_uploaded_files(none, {}, three_files(), left, problem).empty());
  ASSERT_TRUE(problem);
  EXPECT_EQ(problem->code, "draining");
  EXPECT_EQ(asked, 1);
}

TEST(UploadedFiles, AReaderThatDoesNotStartFailsTheCall) {
  const ReaderProcess none("/nonexistent/quire-reader");
  std::optional<Problem> problem;
  const auto goes_on = [] { return std::optional<Problem>(); };
  EXPECT_TRUE(read_uploaded_files(none, {}, three_files(), goes_on, problem).empty());
  ASSERT_TRUE(problem);
  EXPECT_NE(problem->code, "draining");
}

class FileUpload : public test::StubAppTest {
 protected:
  FileUpload() { ingest.tells_ends = true; }
  testing::RawResponse upload(const std::string& name, const std::string& bytes) {
    return call("POST", "/v1/files",
                "--b\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nassistants\r\n"
                "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" +
                    name + "\"\r\n\r\n" + bytes + "\r\n--b--\r\n",
                {}, "multipart/form-data; boundary=b");
  }
  /// Makes every job end with a document of this result.
  void ends_with(ItemResult result, std::optional<ItemError> error = {}) {
    JobItem item;
    item.result = result;
    item.error = std::move(error);
    ingest.results = {item};
  }
  static std::string error_of(const testing::RawResponse& r, const char* member) {
    const auto v = parse_json(r.body);
    if (!v.ok() || !v->is_object() || !v->as_object().contains("error"))
      return "no error body: " + r.body;
    return std::string(v->at("error").at(member).as_string());
  }
};

TEST_F(FileUpload, WithoutAReaderAFileThatIsNoTextIsRefusedByName) {
  const auto r = upload("b.pdf", "%PDF-1.7\n\x93\x8c\x8b\x9e");
  EXPECT_EQ(r.status, 415) << r.body;
  EXPECT_EQ(error_of(r, "code"), "unsupported_media_type");
  EXPECT_EQ(error_of(r, "param"), "file");
  EXPECT_NE(error_of(r, "message").find("quire-reader"), std::string::npos) << r.body;
  ends_with(ItemResult::kCreated);
  EXPECT_EQ(upload("a.txt", "Text.").status, 200);
}

TEST_F(FileUpload, AJobThatMadeNoDocumentFailsTheCallWithItsError) {
  const std::pair<const char*, int> cases[] = {
      {"document_too_long", 400}, {"empty_document", 422}, {"cache_full", 507}, {"internal", 500}};
  for (const auto& [code, status] : cases) {
    ends_with(ItemResult::kFailed, ItemError{code, "is not as it should be", "text"});
    const auto r = upload("a.txt", "Text.");
    EXPECT_EQ(r.status, status) << r.body;
    EXPECT_EQ(error_of(r, "code"), code);
    EXPECT_EQ(error_of(r, "message"), "text is not as it should be");
    EXPECT_NE(r.body.find("\"job_id\":\"job_1\""), std::string::npos) << r.body;
  }
}

TEST_F(FileUpload, AJobThatWasCancelledSaysSo) {
  ends_with(ItemResult::kCancelled);
  const auto r = upload("a.txt", "Text.");
  EXPECT_EQ(r.status, 409) << r.body;
  EXPECT_EQ(error_of(r, "code"), "request_cancelled");
}

TEST_F(FileUpload, AStopIsAnsweredBeforeTheJobEnds) {
  ingest.tells_ends = false;
  ingest.on_submit = [this] { services.draining = true; };
  const auto r = upload("a.txt", "Text.");
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_NE(r.body.find("\"status\":\"uploaded\""), std::string::npos) << r.body;
}

}  // namespace
}  // namespace quire
