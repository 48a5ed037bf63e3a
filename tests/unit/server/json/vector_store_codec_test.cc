#include "server/json/vector_store_codec.h"

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

std::string form(const std::vector<std::pair<std::string, std::string>>& fields,
                 const std::string& file = "some text") {
  std::string out;
  for (const auto& [name, value] : fields)
    out += "--b\r\nContent-Disposition: form-data; name=\"" + name + "\"\r\n\r\n" + value + "\r\n";
  if (!file.empty())
    out += "--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.txt\"\r\n\r\n" +
           file + "\r\n";
  return out + "--b--\r\n";
}

std::string filter_error(const std::string& text) {
  VectorStoreSearch out;
  const auto e = read_vector_store_search(parse(R"({"query":"q","filters":)" + text + "}"), out);
  return e ? e->path : "";
}

TEST(VectorStoreCodec, TheRecordKeepsStoresAndDamageIsFound) {
  std::vector<VectorStore> stores(2);
  stores[0] = {"vs_a", "facts", "what is known", {{"team", "a"}}, 17, {"vsfb_1", "vsfb_2"}};
  stores[1].id = "vs_b";
  const std::string text = vector_stores_text(stores);
  const auto back = read_vector_stores(text);
  ASSERT_TRUE(back.ok()) << back.status().message();
  ASSERT_EQ(back->size(), 2u);
  EXPECT_EQ(back->front().name, "facts");
  EXPECT_EQ(back->front().description, "what is known");
  EXPECT_EQ(back->front().metadata.at("team"), "a");
  EXPECT_EQ(back->front().created_ms, 17);
  EXPECT_EQ(back->front().batches, stores[0].batches);
  EXPECT_EQ(vector_stores_text(*back), text);
  for (std::size_t n = 0; n < text.size(); ++n)
    EXPECT_EQ(read_vector_stores(text.substr(0, n)).code(), Code::kCorruption) << n;
  EXPECT_EQ(read_vector_stores(R"({"version":3,"stores":[]})").code(), Code::kCorruption);
  EXPECT_EQ(read_vector_stores(R"({"version":1,"stores":[{"name":"x"}]})").code(),
            Code::kCorruption);
}

TEST(VectorStoreCodec, ARecordFromBeforeBatchesIsRead) {
  const auto back = read_vector_stores(
      R"({"version":1,"stores":[{"id":"vs_a","name":"","description":"","metadata":{},"created_ms":1}]})");
  ASSERT_TRUE(back.ok()) << back.status().message();
  ASSERT_EQ(back->size(), 1u);
  EXPECT_TRUE(back->front().batches.empty());
}

TEST(VectorStoreCodec, ChunkingIsAutoOrStaticWithBothSizes) {
  const auto read = [](const std::string& strategy, VectorStoreFileBody& out) {
    const auto e = read_vector_store_file(
        parse(R"({"file_id":"a","chunking_strategy":)" + strategy + "}"),
        VectorStoreChange::kCreate, out);
    return e ? e->path : "";
  };
  VectorStoreFileBody out;
  EXPECT_EQ(read(R"({"type":"auto"})", out), "");
  EXPECT_FALSE(out.chunking);
  EXPECT_EQ(read("null", out), "");
  EXPECT_EQ(read(R"({"type":"static","static":{"max_chunk_size_tokens":800,
                     "chunk_overlap_tokens":400}})",
                 out),
            "");
  EXPECT_EQ(out.chunking, (StaticChunking{800, 400}));
  const std::pair<const char*, const char*> wrong[] = {
      {R"({})", "type"},
      {R"({"type":"semantic"})", "type"},
      {R"({"type":"static"})", "static"},
      {R"({"type":"auto","static":{"max_chunk_size_tokens":100,"chunk_overlap_tokens":0}})",
       "static"},
      {R"({"type":"static","static":{"max_chunk_size_tokens":99,"chunk_overlap_tokens":0}})",
       "static.max_chunk_size_tokens"},
      {R"({"type":"static","static":{"max_chunk_size_tokens":4097,"chunk_overlap_tokens":0}})",
       "static.max_chunk_size_tokens"},
      {R"({"type":"static","static":{"max_chunk_size_tokens":101,"chunk_overlap_tokens":51}})",
       "static.chunk_overlap_tokens"},
      {R"({"type":"static","static":{"max_chunk_size_tokens":100}})",
       "static.chunk_overlap_tokens"},
      {R"({"type":"static","static":{"max_chunk_size_tokens":100,"chunk_overlap_tokens":0,
          "by":"words"}})",
       "static.by"}};
  for (const auto& [strategy, path] : wrong)
    EXPECT_EQ(read(strategy, out), std::string("chunking_strategy.") + path) << strategy;
}

TEST(VectorStoreCodec, AFileIsOneDocumentWithNameAndPurpose) {
  DocumentBatch batch;
  const auto e = read_file_form(form({{"purpose", "assistants"},
                                      {"expires_after[anchor]", "created_at"},
                                      {"expires_after[seconds]", "7200"}}),
                                "b", "file-1", batch);
  ASSERT_FALSE(e) << e->message;
  ASSERT_EQ(batch.documents.size(), 1u);
  EXPECT_EQ(batch.documents[0].id, "file-1");
  EXPECT_EQ(batch.documents[0].text, "some text");
  EXPECT_EQ(batch.documents[0].metadata_json, R"({"filename":"a.txt","purpose":"assistants"})");
  EXPECT_EQ(batch.options.ttl_seconds, 7200u);
  EXPECT_FALSE(batch.options.in_batch);
}

TEST(VectorStoreCodec, WrongFormsNameTheField) {
  const std::pair<std::string, std::string> cases[] = {
      {form({}), "purpose"},
      {form({{"purpose", "fine-tune"}}), "purpose"},
      {form({{"purpose", "assistants"}}, ""), "file"},
      {form({{"purpose", "assistants"}, {"colour", "red"}}), "colour"},
      {form({{"purpose", "assistants"}, {"expires_after[seconds]", "7200"}}), "expires_after"},
      {form({{"purpose", "assistants"}, {"expires_after[seconds]", "60"}}),
       "expires_after[seconds]"},
      {form({{"purpose", "assistants"}, {"expires_after[anchor]", "now"}}),
       "expires_after[anchor]"}};
  for (const auto& [body, path] : cases) {
    DocumentBatch batch;
    const auto e = read_file_form(body, "b", "file-1", batch);
    ASSERT_TRUE(e) << path;
    EXPECT_EQ(e->path, path) << e->message;
  }
}

TEST(VectorStoreCodec, FiltersBecomeConditionsOfMetadata) {
  VectorStoreSearch out;
  const auto e = read_vector_store_search(parse(R"({"query":["a","b"],"max_num_results":3,
    "filters":{"type":"and","filters":[
      {"type":"eq","key":"team","value":"x"},{"type":"gte","key":"year","value":2020},
      {"type":"nin","key":"kind","value":["draft",7,true]},
      {"type":"or","filters":[{"type":"eq","key":"lang","value":"en"},
                              {"type":"in","key":"lang","value":["de","fr"]}]}]}})"),
                                          out);
  ASSERT_FALSE(e) << e->message;
  EXPECT_EQ(out.queries, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(out.most, 3);
  const auto passes = [&](const char* metadata) { return metadata_matches(metadata, out.filter); };
  EXPECT_TRUE(passes(R"({"team":"x","year":2021,"kind":"final","lang":"fr"})"));
  EXPECT_FALSE(passes(R"({"team":"x","year":2019,"kind":"final","lang":"fr"})"));
  EXPECT_FALSE(passes(R"({"team":"x","year":"2021","kind":"final","lang":"fr"})"));
  EXPECT_FALSE(passes(R"({"team":"x","year":2021,"kind":7,"lang":"fr"})"));
  EXPECT_FALSE(passes(R"({"team":"x","year":2021,"lang":"it"})"));
  EXPECT_FALSE(passes(R"({"team":"y","year":2021,"lang":"en"})"));
}

TEST(VectorStoreCodec, FiltersThatCannotBeKeptAreRefused) {
  EXPECT_EQ(filter_error(R"({"type":"lt","key":"a","value":true})"), "filters.value");
  EXPECT_EQ(filter_error(R"({"type":"or","filters":[{"type":"eq","key":"a","value":1},
                                                    {"type":"eq","key":"b","value":1}]})"),
            "filters.type");
  EXPECT_EQ(filter_error(R"({"type":"or","filters":[{"type":"gt","key":"a","value":1}]})"),
            "filters.type");
  // Both of its parts must hold, which one list of values cannot say.
  EXPECT_EQ(filter_error(R"({"type":"or","filters":[{"type":"and","filters":[
              {"type":"eq","key":"a","value":1},{"type":"eq","key":"a","value":2}]},
              {"type":"eq","key":"a","value":3}]})"),
            "filters.type");
  EXPECT_EQ(filter_error(R"({"type":"like","key":"a","value":1})"), "filters.type");
  EXPECT_EQ(filter_error(R"({"key":"a","value":1})"), "filters.type");
  EXPECT_EQ(filter_error(R"({"type":"eq","key":"a","value":[1]})"), "filters.value");
  EXPECT_EQ(filter_error(R"({"type":"eq","key":"a"})"), "filters.value");
  EXPECT_EQ(filter_error(R"({"type":"in","key":"a","value":[[1]]})"), "filters.value");
  EXPECT_EQ(filter_error(R"({"type":"eq","key":"a","value":1,"x":1})"), "filters.x");
  std::string deep = R"({"type":"eq","key":"a","value":1})";
  for (int i = 0; i < 5; ++i) deep = R"({"type":"and","filters":[)" + deep + "]}";
  EXPECT_NE(filter_error(deep), "");
}

TEST(VectorStoreCodec, BodiesAreCheckedMemberByMember) {
  const auto path = [](const std::string& text, VectorStoreChange change) {
    VectorStoreBody out;
    const auto e = read_vector_store(parse(text), change, out);
    return e ? e->path : "";
  };
  using enum VectorStoreChange;
  EXPECT_EQ(path(R"({"name":"a","file_ids":["x"],"metadata":{"k":"v"}})", kCreate), "");
  EXPECT_EQ(path(R"({"chunking_strategy":{"type":"auto"}})", kCreate), "");
  const std::string cut = R"("chunking_strategy":{"type":"static","static":
      {"max_chunk_size_tokens":100,"chunk_overlap_tokens":0}}})";
  EXPECT_EQ(path("{" + cut, kCreate), "chunking_strategy");  // it would cut nothing
  EXPECT_EQ(path(R"({"file_ids":["a"],)" + cut, kCreate), "");
  EXPECT_EQ(path(R"({"expires_after":{"anchor":"last_active_at","days":1}})", kModify),
            "expires_after");
  EXPECT_EQ(path(R"({"file_ids":["x"]})", kModify), "file_ids");
  EXPECT_EQ(path(R"({"metadata":{"k":1}})", kModify), "metadata");
  EXPECT_EQ(path(R"({"colour":1})", kModify), "colour");

  VectorStoreFileBody file;
  auto e = read_vector_store_file(parse(R"({"file_id":"a","attributes":{"n":1,"t":true,"s":"x"}})"),
                                  kCreate, file);
  ASSERT_FALSE(e) << e->message;
  EXPECT_EQ(file.attributes.size(), 3u);
  for (const char* bad : {R"({"file_id":"a","attributes":{"filename":"x"}})",
                          R"({"file_id":"a","attributes":{"k":[1]}})", R"({"attributes":{"k":1}})"})
    EXPECT_TRUE(read_vector_store_file(parse(bad), kCreate, file)) << bad;
  EXPECT_TRUE(file_attributes(parse(R"({"filename":"a","purpose":"b","vector_stores":["c"],
                                        "list":[1]})")
                                  .as_object())
                  .empty());
}

}  // namespace
}  // namespace quire
