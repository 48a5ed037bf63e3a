// Files of a form are read one after the other, as long as somebody wants them.
#include "server/handlers/uploaded_files.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace quire
