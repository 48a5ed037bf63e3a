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
#include "fidelity/answer_sink.h"

namespace quire::bench {
namespace json = boost::json;
namespace {

constexpr std::int32_t kMostTokens = 48;
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

KeptAnswer CitedAnswers::answer(const SuiteRecord& record) {
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
  const PromptFormat& format = opened_->engine->prompt_format();
  QueryRequest request;
  request.id = "bench";
  request.prefix_ids = take(format.prefix());
  std::vector<DocumentTokens> tokens;
  for (const SuiteDocument& d : *record.documents) {
    tokens.push_back(take(format.document(d.title, d.text)));
    QueryContext context;
    context.token_ids = tokens.back().ids;
    request.contexts.push_back(std::move(context));
  }
  request.suffix_ids = take(format.suffix(record.question));
  request.attribute = true;
  request.sampling.max_tokens = kMostTokens;
  for (const auto& s : format.stop_strings()) request.sampling.stop.push_back(s);
  request.sampling.stop_token_ids = format.stop_ids();
  auto sink = std::make_shared<AnswerSink>(0);
  auto handle = take(opened_->engine->query(std::move(request), sink));
  sink->wait(handle, nullptr);
  check(sink->status);
  json::array documents, attention;
  for (std::size_t c = 0; c < sink->plan.contexts.size(); ++c) {
    json::array blocks;
    const std::size_t size = (*record.documents)[c].text.size();
    for (const PlannedBlock& b : sink->plan.contexts[c].blocks) {
      std::size_t begin = size, end = 0;
      for (std::int32_t t = b.first_token; t < b.first_token + b.num_tokens; ++t) {
        const TokenSpan& span = tokens[c].spans.at(to_size(t));
        begin = std::min<std::size_t>(begin, span.begin);
        end = std::max<std::size_t>(end, span.end);
      }
      blocks.push_back(json::array{begin, std::max(begin, end)});
    }
    documents.push_back(std::move(blocks));
  }
  for (const float share : sink->attribution.share)
    attention.push_back(std::llround(double{share} / kAttentionUnit));
  return json::serialize(
      json::object{{"model", model_},
                   {"record", record_hash(record).hex()},
                   {"question", record.question},
                   {"answer", sink->text},
                   {"token_ends", json::array(sink->token_ends.begin(), sink->token_ends.end())},
                   {"blocks", std::move(documents)},
                   {"attended_tokens", sink->attribution.num_tokens},
                   {"attention", std::move(attention)}});
}

KeptAnswer CitedAnswers::parse(const SuiteRecord& record, const std::string& line) const {
  const json::value value = take(parse_json(line));
  KeptAnswer out;
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
