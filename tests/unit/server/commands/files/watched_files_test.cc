// Which files of a watched folder are due: one that rests, and not only once all of them do.
#include "server/commands/files/watched_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

FoundFile file(const std::string& name, std::int64_t modified = 1) {
  return {.path = "/w/" + name, .root = "/w", .name = name, .bytes = 5, .modified_ns = modified};
}

/// Returns the names of the files that are left in a walk over these, if any is due.
std::vector<std::string> due(WatchedFiles& watched, std::vector<FoundFile> files,
                             bool taken = true) {
  FileWalk walk;
  walk.files = std::move(files);
  if (!watched.look(walk)) return {};
  if (taken) watched.taken(walk);
  std::vector<std::string> out{"due:"};
  for (const FoundFile& f : walk.files) out.push_back(f.name + std::to_string(f.modified_ns));
  return out;
}

TEST(WatchedFiles, NothingIsDueWhereNothingChanges) {
  WatchedFiles watched({file("a"), file("b")});
  EXPECT_THAT(due(watched, {file("a"), file("b")}), IsEmpty());
}

TEST(WatchedFiles, AFileIsTakenOnceItRests) {
  WatchedFiles watched({file("a")});
  EXPECT_THAT(due(watched, {file("a", 2)}), IsEmpty());
  EXPECT_THAT(due(watched, {file("a", 3)}), IsEmpty());
  EXPECT_THAT(due(watched, {file("a", 3)}), ElementsAre("due:", "a3"));
  EXPECT_THAT(due(watched, {file("a", 3)}), IsEmpty());
}

TEST(WatchedFiles, AFileThatNeverRestsHoldsUpNoOther) {
  WatchedFiles watched({file("a"), file("log")});
  EXPECT_THAT(due(watched, {file("a"), file("b"), file("log", 2)}), IsEmpty());
  EXPECT_THAT(due(watched, {file("a"), file("b"), file("log", 3)}),
              ElementsAre("due:", "a1", "b1"));
  EXPECT_THAT(due(watched, {file("a"), file("b"), file("log", 4)}), IsEmpty());
  EXPECT_THAT(due(watched, {file("a"), file("b"), file("log", 4)}),
              ElementsAre("due:", "a1", "b1", "log4"));
}

TEST(WatchedFiles, AFileThatIsMissingAtTwoLooksIsDueOnce) {
  WatchedFiles watched({file("a"), file("b")});
  EXPECT_THAT(due(watched, {file("b")}), IsEmpty());
  EXPECT_THAT(due(watched, {file("a"), file("b")}), IsEmpty()) << "it has only been replaced";
  EXPECT_THAT(due(watched, {file("a"), file("b")}), IsEmpty());
  EXPECT_THAT(due(watched, {file("b")}), IsEmpty());
  EXPECT_THAT(due(watched, {file("b")}), ElementsAre("due:", "b1"));
  EXPECT_THAT(due(watched, {file("b")}), IsEmpty());
  // It comes back as it was.
  EXPECT_THAT(due(watched, {file("a"), file("b")}), IsEmpty());
  EXPECT_THAT(due(watched, {file("a"), file("b")}), ElementsAre("due:", "a1", "b1"));
}

TEST(WatchedFiles, WhatIsMissingAtOneLookIsNotDeletedByAPassForAnotherFile) {
  WatchedFiles watched({file("a"), file("b")});
  EXPECT_THAT(due(watched, {file("a"), file("b"), file("c")}), IsEmpty());
  FileWalk walk;
  walk.files = {file("b"), file("c")};
  ASSERT_TRUE(watched.look(walk)) << "for c";
  ASSERT_EQ(walk.just_gone.size(), 1u);
  EXPECT_EQ(walk.just_gone[0].name, "a");
  watched.taken(walk);
  EXPECT_THAT(due(watched, {file("b"), file("c")}), ElementsAre("due:", "b1", "c1"));
  EXPECT_THAT(due(watched, {file("b"), file("c")}), IsEmpty());
}

TEST(WatchedFiles, WhatWasNotTakenIsDueAgain) {
  WatchedFiles watched({file("a"), file("b")});
  EXPECT_THAT(due(watched, {file("a", 2)}, false), IsEmpty());
  for (int i = 0; i < 3; ++i)
    EXPECT_THAT(due(watched, {file("a", 2)}, false), ElementsAre("due:", "a2"));
  EXPECT_THAT(due(watched, {file("a", 2)}), ElementsAre("due:", "a2"));
  EXPECT_THAT(due(watched, {file("a", 2)}), IsEmpty());
}

}  // namespace
}  // namespace quire
