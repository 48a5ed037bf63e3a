#include "bench/cited_answers.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <boost/json/value_to.hpp>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "base/index.h"
#include "base/json_parse.h"
#include "bench/cached_documents.h"
#include "engine/engine.h"

namespace quire::bench {
namespace json = boost::json;
namespace {

constexpr double kAttentionUnit = 1e-5;  ///< attention is kept as whole numbers of it

}  // namespace

/// The model over an empty store.
struct CitedAnswers::Opened {
  TempFolder folder{"quire-citations"};
  std::unique_ptr<Store> store;
  std::unique_ptr<Engine> engine;

  ~Opened() {
    if (engine) engine->stop(std::chrono::seconds(10));
  }
};

CitedAnswers::CitedAnswers(std::string file, std::string model)
    : file_(std::move(file)), model_(std::move(model)) {
  std::ifstream in(file_);
  for (std::string line; std::getline(in, line);) {
    const auto value = take(parse_json(line));
    if (json::value_to<std::string>(value.at("model")) != model_) continue;
    known_.emplace_back(json::value_to<std::string>(value.at("record")), line);
  }
  std::ranges::sort(known_);
}

CitedAnswers::~CitedAnswers() = default;

CitableAnswer CitedAnswers::answer(const SuiteRecord& record) {
  const std::string hash = record_hash(record).hex();
  const auto found = std::ranges::lower_bound(known_, hash, {},
                                              [](const auto& k) { return k.first; });
  if (found != known_.end() && found->first == hash) return parse(record, found->second);
  const std::string line = ask(record);
  ++asked_;
  std::ofstream out(file_, std::ios::app);
  out << line << "\n";
  if (!out.flush()) check(Status::io("cannot write " + file_));
  return parse(record, line);
}

void CitedAnswers::open() {
  opened_ = std::make_unique<Opened>();
  StoreOptions store;
  store.path = (opened_->folder.path() / "store").string();
  opened_->store = take(open_store(store));
  EngineOptions engine;
  engine.model_path = model_;
  opened_->engine = take(create_engine(engine, *opened_->store));
}

std::string CitedAnswers::ask(const SuiteRecord& record) {
  if (!opened_) open();
  const CitableAnswer answer = take(answer_over_texts(*opened_->engine, record));
  json::array documents, attention;
  for (const CitedText& text : answer.documents) {
    json::array blocks;
    for (const auto& [begin, end] : text.blocks) blocks.push_back(json::array{begin, end});
    documents.push_back(std::move(blocks));
  }
  for (const float share : answer.attention.share)
    attention.push_back(std::llround(double{share} / kAttentionUnit));
  return json::serialize(
      json::object{{"model", model_},
                   {"record", record_hash(record).hex()},
                   {"question", record.question},
                   {"answer", answer.text},
                   {"token_ends", json::array(answer.token_ends.begin(), answer.token_ends.end())},
                   {"blocks", std::move(documents)},
                   {"attended_tokens", answer.attention.num_tokens},
                   {"attention", std::move(attention)}});
}

CitableAnswer CitedAnswers::parse(const SuiteRecord& record, const std::string& line) const {
  const json::value value = take(parse_json(line));
  CitableAnswer out;
  out.text = json::value_to<std::string>(value.at("answer"));
  out.token_ends = json::value_to<std::vector<std::size_t>>(value.at("token_ends"));
  const auto blocks = json::value_to<std::vector<std::vector<std::vector<std::size_t>>>>(
      value.at("blocks"));
  if (blocks.size() != record.documents->size())
    check(Status::corruption(file_ + ": an answer has other documents than its question"));
  std::int64_t num_blocks = 0;
  for (std::size_t d = 0; d < blocks.size(); ++d) {
    const SuiteDocument& document = (*record.documents)[d];
    CitedText& text = out.documents.emplace_back();
    text.title = document.title;
    text.text = document.text;
    PlannedContext& context = out.plan.contexts.emplace_back();
    for (const auto& range : blocks[d]) {
      text.blocks.emplace_back(range.at(0), range.at(1));
      context.blocks.emplace_back().kept_layers = 1;
      ++num_blocks;
    }
  }
  out.attention.num_tokens = json::value_to<std::int64_t>(value.at("attended_tokens"));
  out.attention.num_blocks = num_blocks;
  for (const auto& share : value.at("attention").as_array())
    out.attention.share.push_back(static_cast<float>(share.to_number<double>() * kAttentionUnit));
  return out;
}

}  // namespace quire::bench
