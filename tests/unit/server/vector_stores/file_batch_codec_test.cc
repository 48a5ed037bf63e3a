#include "server/vector_stores/file_batch_codec.h"

#include <gtest/gtest.h>

#include "base/json_parse.h"

namespace quire {
namespace {

namespace json = boost::json;

json::value parse(const std::string& text) {
  auto v = parse_json(text);
  QUIRE_CHECK(v.ok(), v.status().message());
  return std::move(*v);
}

std::string error_of(const std::string& body) {
  FileBatch out;
  const auto e = read_file_batch(parse(body), out);
  return e ? e->path : "";
}

TEST(FileBatchCodec, FilesShareAttributesOrHaveTheirOwn) {
  FileBatch shared;
  ASSERT_FALSE(read_file_batch(parse(R"({"file_ids":["a","b"],"attributes":{"year":1931},
      "chunking_strategy":{"type":"static","static":{"max_chunk_size_tokens":200,
      "chunk_overlap_tokens":50}}})"),
                               shared));
  ASSERT_EQ(shared.files.size(), 2u);
  EXPECT_EQ(shared.files[1].id, "b");
  EXPECT_EQ(shared.attributes.at("year"), 1931);
  EXPECT_EQ(shared.chunking, (StaticChunking{200, 50}));
  FileBatch own;
  ASSERT_FALSE(read_file_batch(parse(R"({"files":[{"file_id":"a","attributes":{"year":1}},
      {"file_id":"b","chunking_strategy":{"type":"static","static":{
      "max_chunk_size_tokens":100,"chunk_overlap_tokens":0}}}]})"),
                               own));
  ASSERT_EQ(own.files.size(), 2u);
  EXPECT_EQ(own.files[0].attributes.at("year"), 1);
  EXPECT_FALSE(own.files[0].chunking);
  EXPECT_EQ(own.files[1].chunking, (StaticChunking{100, 0}));
  EXPECT_TRUE(own.attributes.empty());
}

TEST(FileBatchCodec, WrongBodiesNameTheMember) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({})", "file_ids"},
      {R"({"file_ids":["a"],"files":[{"file_id":"b"}]})", "file_ids"},
      {R"({"file_ids":[]})", "file_ids"},
      {R"({"file_ids":["a",7]})", "file_ids[1]"},
      {R"({"file_ids":["a","b","a"]})", "file_ids"},
      {R"({"files":[]})", "files"},
      {R"({"files":[{"attributes":{}}]})", "files[0].file_id"},
      {R"({"files":[{"file_id":"a"},{"file_id":"b","colour":"red"}]})", "files[1].colour"},
      {R"({"files":[{"file_id":"a"},{"file_id":"a"}]})", "files"},
      {R"({"files":[{"file_id":"a","attributes":{"purpose":"x"}}]})", "files[0].attributes"},
      {R"({"files":[{"file_id":"a"}],"attributes":{"year":1}})", "attributes"},
      {R"({"file_ids":["a"],"attributes":{"list":[]}})", "attributes"},
      {R"({"file_ids":["a"],"chunking_strategy":{"type":"static"}})", "chunking_strategy.static"},
      {R"({"file_ids":["a"],"wait":true})", "wait"}};
  for (const auto& [body, path] : cases) EXPECT_EQ(error_of(body), path) << body;
  std::string many = R"({"file_ids":[)";
  for (std::size_t i = 0; i <= kMostBatchFiles; ++i)
    many += (i ? ",\"f" : "\"f") + std::to_string(i) + "\"";
  EXPECT_EQ(error_of(many + "]}"), "file_ids");
}

TEST(FileBatchCodec, TheRecordKeepsEachFilesStateAndDamageIsFound) {
  FileBatch b;
  b.id = "vsfb_1";
  b.store_id = "vs_1";
  b.created_ms = 17;
  b.cancelled = true;
  b.attributes = {{"year", 1931}};
  b.chunking = StaticChunking{200, 50};
  b.files = {{.id = "a", .state = BatchFileState::kCompleted},
             {.id = "b", .attributes = {{"x", "y"}}, .chunking = StaticChunking{100, 0}},
             {.id = "c",
              .state = BatchFileState::kFailed,
              .error_code = "invalid_file",
              .error_message = "there is none"},
             {.id = "d", .state = BatchFileState::kCancelled}};
  const std::string text = file_batch_text(b);
  const auto back = read_file_batch_record(text);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(file_batch_text(*back), text);
  EXPECT_EQ(back->store_id, "vs_1");
  EXPECT_TRUE(back->cancelled);
  EXPECT_EQ(back->chunking, b.chunking);
  EXPECT_EQ(back->files[1].chunking, b.files[1].chunking);
  EXPECT_EQ(back->files[2].error_message, "there is none");
  for (const auto state : {BatchFileState::kInProgress, BatchFileState::kCompleted,
                           BatchFileState::kFailed, BatchFileState::kCancelled})
    EXPECT_EQ(back->count(state), 1u) << batch_file_state_name(state);
  EXPECT_FALSE(back->ended());
  for (std::size_t n = 0; n < text.size(); ++n)
    EXPECT_EQ(read_file_batch_record(text.substr(0, n)).code(), Code::kCorruption) << n;
  std::string unknown = text;
  unknown.replace(unknown.find("cancelled\"}"), 9, "forgotten");
  EXPECT_EQ(read_file_batch_record(unknown).code(), Code::kCorruption);
}

TEST(FileBatchCodec, TheRecordOfUnfinishedBatchesIsRead) {
  const std::vector<UnfinishedBatch> batches = {{"default", "vsfb_1"}, {"other", "vsfb_2"}};
  const std::string text = unfinished_batches_text(batches);
  const auto back = read_unfinished_batches(text);
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(*back, batches);
  for (std::size_t n = 0; n < text.size(); ++n)
    EXPECT_EQ(read_unfinished_batches(text.substr(0, n)).code(), Code::kCorruption) << n;
  EXPECT_EQ(read_unfinished_batches(R"({"version":2,"batches":[]})").code(), Code::kCorruption);
}

}  // namespace
}  // namespace quire
