#include "engine/retrieve/plugs/ctkvr.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/index.h"
#include "base/stopwatch.h"
#include "engine/compute/compute.h"
#include "engine/retrieve/step_attention.h"
#include "kernels/choice/query_turn.h"

namespace quire {
namespace {

constexpr std::int64_t kLeastCentroids = 256, kMostCentroids = 512, kRowsPerCentroid = 16;
constexpr std::int64_t kShortList = 1280;
constexpr std::int32_t kFallbackPage = 32;
/// Rows of the answer for which a device has room beside the window; the host attends to older
/// ones.
constexpr std::int64_t kAnswerRows = 1024;
/// The rows beyond a quarter: a margin for rows that codes rank wrong.
constexpr std::int64_t kSpareRows = 64;

OptionTable<CtkvrOptions> option_table() {
  using Rows = WantedQueries::Rows;
  OptionTable<CtkvrOptions> table;
  table.add(row_options());
  table.add(OptionFields<CtkvrOptions>{
      number_option("decode_centroids", &CtkvrOptions::centroids, {0, 1 << 16},
                    "prompt queries that index the cache; 0: one for 16 tokens, 256 at least and "
                    "512 at most"),
      number_option("decode_least_centroids", &CtkvrOptions::least_centroids, {1, 1 << 16},
                    "with fewer queries of the prompt at hand freekv decodes"),
      number_option("decode_probes", &CtkvrOptions::probes, {1, 1 << 16},
                    "nearest centroids whose lists are looked through"),
      number_option("decode_list", &CtkvrOptions::list_rows, {0, 1 << 20},
                    "tokens in a list; 0: as many as are chosen, and five times those up to 1280 "
                    "tokens"),
      words_option("decode_centroid_rows", &CtkvrOptions::centroid_rows,
                   {{"final", Rows::kLast},
                    {"equi", Rows::kSpread},
                    {"random", Rows::kRandom},
                    {"init", Rows::kFirst}},
                   "which prompt tokens' queries: the last, evenly spread, random, the first"),
      flag_option("decode_stored_queries", &CtkvrOptions::stored_queries,
                  "where too few tokens ran, queries that ingest stored of documents' last tokens "
                  "index, too (final only)"),
      flag_option("decode_updates", &CtkvrOptions::updates,
                  "the answer's queries replace the oldest centroids"),
      number_option("decode_reuse", &CtkvrOptions::reuse, {1, 64},
                    "steps that a choice of rows serves, for heads that do not turn away from it "
                    "(decode_tau); layers take turns in choosing anew"),
      number_option("decode_tau", &CtkvrOptions::tau, {-1, 2},
                    "least mean cosine to the query that a choice goes by, for a head to go by it, "
                    "too; above 1: never"),
      flag_option("decode_rerank", &CtkvrOptions::rerank,
                  "the best of what lists name are attended to; off: all of it"),
  });
  return table;
}

/// Returns the default length of a list: as many rows as a step chooses, because many lists
/// together name enough. Small choices get longer lists, since short lists easily miss rows.
std::int64_t usual_list(std::int64_t chosen) {
  return std::max(chosen, std::min(chosen * 5, kShortList));
}

std::int32_t whole_pages(std::int32_t rows) {
  return (rows + kFallbackPage - 1) / kFallbackPage * kFallbackPage;
}

/// Makes a freekv retriever for as many tokens a step.
std::unique_ptr<PagedRetriever> pages_instead(const RowPolicy& policy) {
  PagedPolicy pages;
  pages.page_tokens = kFallbackPage;
  pages.sink = whole_pages(policy.sink);
  pages.window = whole_pages(policy.window);
  pages.budget = pages.sink + pages.window + whole_pages(policy.chosen);
  pages.dense_layers = policy.dense_layers;
  pages.tau = 0.8;
  return std::make_unique<PagedRetriever>(pages);
}

}  // namespace

CtkvrRetriever::CtkvrRetriever(const CtkvrOptions& options)
    : RowRetriever({.uses_device = true}, options),
      options_(options),
      list_rows_(options.list_rows > 0 ? options.list_rows : usual_list(options.chosen)),
      least_centroids_(std::min(options.least_centroids,
                                options.centroids > 0 ? options.centroids : kMostCentroids)) {}

void CtkvrRetriever::begin_sequence(const AssembledPrompt& prompt) {
  num_centroids_ = centroids_for(prompt.num_tokens);
  fallback_.reset();
  queries_.reset();
  buffers_ = ChoiceBuffers(buffer_memory());
  indexes_.clear();
  static_rows_.clear();
  heads_ = std::vector<Head>(at(sequence().num_kv_heads));
  choices_.assign(at(sequence().num_layers), {});
  for (Choice& choice : choices_) {
    choice.rows.resize(heads_.size());
    choice.by.resize(at(std::int64_t{sequence().num_heads} * sequence().head_dim));
  }
}

std::int64_t CtkvrRetriever::centroids_for(std::int64_t prompt_tokens) const {
  return options_.centroids > 0
             ? options_.centroids
             : std::min(prompt_tokens, std::clamp(prompt_tokens / kRowsPerCentroid, kLeastCentroids,
                                                  kMostCentroids));
}

WantedQueries CtkvrRetriever::queries_wanted(std::int64_t prompt_tokens) const {
  // Within the budget no index is used.
  if (prompt_tokens <= options_.budget) return {};
  return {centroids_for(prompt_tokens), options_.centroid_rows,
          options_.centroid_rows == WantedQueries::Rows::kLast && options_.stored_queries};
}

/// Returns how many queries of the prompt every sparse layer has, up to those wanted.
std::int64_t CtkvrRetriever::available(const AssembledPrompt& prompt) const {
  std::int64_t n = num_centroids_;
  for (std::int32_t layer = 0; layer < sequence().num_layers; ++layer) {
    if (sparse(layer))
      n = std::min(n, prompt.queries == nullptr ? 0 : prompt.queries->num_rows(layer));
  }
  return n;
}

CentroidInput CtkvrRetriever::index_input(std::int32_t layer, const KvView& kv) const {
  CentroidInput input;
  input.queries = &*queries_;
  input.layer = layer;
  input.kv = kv;
  input.num_heads = sequence().num_heads;
  input.host = prompt_host(layer);
  input.list_rows = std::min(list_rows_, input.host.end - input.host.begin);
  input.num_centroids = num_centroids_;
  input.memory = buffer_memory();
  return input;
}

/// Decides what serves the sequence before its layers leave the device, because freekv wants them
/// there or in another layout.
Result<bool> CtkvrRetriever::begin_index(const AssembledPrompt& prompt) {
  const SequenceContext& all = sequence();
  if (const std::int64_t queries = available(prompt); queries < least_centroids_) {
    QUIRE_RETURN_IF_ERROR(fall_back(prompt, queries));
    return false;
  }
  QUIRE_RETURN_IF_ERROR(check_memory(*prompt.queries));
  queries_.emplace(std::move(*prompt.queries));
  for (std::int32_t layer = 0; layer < all.num_layers; ++layer) {
    if (!sparse(layer)) queries_->release(layer);
  }
  indexes_.resize(at(all.num_layers));
  codes_ = std::vector<KeyCodes>(at(all.num_layers));
  QUIRE_RETURN_IF_ERROR(ones_.reserve(buffer_memory(), all.head_dim));
  const std::vector<float> ones(at(all.head_dim), 1.0f);
  QUIRE_RETURN_IF_ERROR(write_memory(buffer_memory().get(), ones_.data(), ones.data(),
                                     all.head_dim * std::int64_t{sizeof(float)}));
  QUIRE_RETURN_IF_ERROR(index_in_place());
  QUIRE_RETURN_IF_ERROR(keep_static_rows());
  return true;
}

/// Copies the rows that every step attends to before their layers leave the device, as far as the
/// request's part of the device has room for them.
Status CtkvrRetriever::keep_static_rows() {
  const SequenceContext& all = sequence();
  std::vector<std::int32_t> layers;
  for (std::int32_t layer = 0; layer < all.num_layers; ++layer) {
    if (indexes_[at(layer)] && indexes_[at(layer)]->in_compute_memory()) layers.push_back(layer);
  }
  if (layers.empty()) return {};
  const KvView shape = all.cache->view(layers.front());
  std::int64_t answer = std::min(kAnswerRows, most_local(options_) - options_.window);
  if (all.device->max_bytes() > 0) {
    const std::int64_t room = all.device->max_bytes() / all.device_requests -
                              choosing_need(shape_of(all, 0))
                                  .bytes(all.cache->num_rows(0) + options_.generated);
    const auto bytes = [&] {
      return count_of(layers) *
             StaticRows::bytes_for(shape, options_.sink, options_.window + answer);
    };
    while (answer > kPageTokens && bytes() > room) answer /= 2;
    if (bytes() > room) return {};
  }
  static_rows_.resize(at(all.num_layers));
  for (const std::int32_t layer : layers) {
    const KvView kv = all.cache->view(layer);
    Result<StaticRows> rows = StaticRows::create(*all.device, kv, options_.sink,
                                                 options_.window + answer);
    // The host attends to what finds no room.
    if (rows.code() == Code::kResourceExhausted) return {};
    QUIRE_RETURN_IF_ERROR(rows.status());
    QUIRE_RETURN_IF_ERROR(rows->follow(all.compute->kv(), kv, host_end(layer, kv.num_rows)));
    stats_.device_bytes += rows->bytes();
    static_rows_[at(layer)] = std::move(*rows);
  }
  return {};
}

/// Indexes layers where their keys are, on a device. What finds no room there is left to index().
Status CtkvrRetriever::index_in_place() {
  const SequenceContext& all = sequence();
  if (buffer_memory() == nullptr) return {};
  IndexScratch scratch(*all.compute);
  for (std::int32_t layer = 0; layer < all.num_layers; ++layer) {
    if (!sparse(layer)) continue;
    CentroidInput input = index_input(layer, all.cache->view(layer));
    input.in_place = &scratch;
    Result<CentroidIndex> index = CentroidIndex::build(*all.device, input);
    if (index.code() == Code::kResourceExhausted) return {};
    QUIRE_RETURN_IF_ERROR(index.status());
    indexes_[at(layer)] = std::move(*index);
  }
  return {};
}

Status CtkvrRetriever::index(std::int32_t layer) {
  const SequenceContext& all = sequence();
  HostRows room;
  QUIRE_ASSIGN_OR_RETURN(const KvView kv, all.cache->host_view(layer, room));
  std::optional<CentroidIndex>& index = indexes_[at(layer)];
  if (!index) {
    QUIRE_ASSIGN_OR_RETURN(index, CentroidIndex::build(*all.device, index_input(layer, kv)));
  }
  queries_->release(layer);
  stats_.device_bytes += index->device_bytes();
  return options_.rerank && KeyCodes::pay(kv) ? codes_[at(layer)].extend(kv, prompt_host(layer).end)
                                              : Status();
}

ChoosingNeed CtkvrRetriever::choosing_need(const RetrieveShape& shape) const {
  const auto bytes = [](std::int64_t n, std::size_t size) {
    return n * static_cast<std::int64_t>(size);
  };
  const std::int64_t n = options_.centroids > 0 ? options_.centroids : kMostCentroids,
                     layers = std::max(0, shape.num_layers - options_.dense_layers),
                     lists = layers * shape.num_kv_heads * n;
  // Each list has one bit for each row, in whole words.
  ChoosingNeed need{layers * CentroidIndex::device_bytes_for(shape.num_heads, shape.head_dim, n) +
                        bytes(lists, sizeof(std::uint64_t)),
                    (lists + 7) / 8};
  need += ChoiceBuffers::need(shape, 0, n, 0);
  // Unit weights, normalised queries, attention to the static rows with its log-sum-exps.
  need.fixed_bytes += bytes(shape.head_dim + std::int64_t{shape.num_heads} *
                                                 (2 * std::int64_t{shape.head_dim} + 1),
                            sizeof(float)) +
                      bytes(shape.num_kv_heads * options_.probes, sizeof(std::int32_t));
  const ChoosingNeed instead = pages_instead(options_)->choosing_need(shape);
  return {std::max(need.fixed_bytes, instead.fixed_bytes),
          std::max(need.row_bytes, instead.row_bytes)};
}

/// Refuses a request whose centroids its part of the device can never hold, because waiting would
/// not help. An index may be twice as large as what it indexes.
Status CtkvrRetriever::check_memory(const PromptQueries& queries) const {
  const SequenceContext& all = sequence();
  QUIRE_CHECK(all.device != nullptr, "centroids lie on a device");
  std::int64_t centroids = 0, lists = 0;
  for (std::int32_t layer = 0; layer < all.num_layers; ++layer) {
    if (!sparse(layer)) continue;
    const std::int64_t n = std::min(num_centroids_, queries.num_rows(layer));
    centroids += CentroidIndex::device_bytes_for(all.num_heads, all.head_dim, n);
    lists += CentroidIndex::list_bytes_for(all.num_kv_heads, n, prompt_host(layer).end);
  }
  const std::string field = "cache.options.decode_centroids";
  if (const std::int64_t most = all.device->max_bytes() / all.device_requests;
      most > 0 && centroids > most) {
    return Status::invalid(field, "the centroids need " + std::to_string(centroids) +
                                      " bytes of device memory, model.device_cache_bytes shared "
                                      "out to model.device_requests allows " +
                                      std::to_string(most) + "; ask for fewer or raise that");
  }
  if (lists <= 2 * all.cache->bytes()) return {};
  return Status::invalid(field, "the lists of so many centroids need " + std::to_string(lists) +
                                    " bytes, more than twice the " +
                                    std::to_string(all.cache->bytes()) +
                                    " of what they index; ask for fewer");
}

/// Falls back to pages with as many tokens a step, because lists of too few centroids would miss
/// important rows.
Status CtkvrRetriever::fall_back(const AssembledPrompt& prompt, std::int64_t available) {
  fallback_ = pages_instead(policy());
  note_ = std::to_string(available) + " queries of the prompt were at hand and " +
          std::to_string(least_centroids_) + " are needed (decode_least_centroids): freekv decoded";
  return fallback_->prepare(sequence(), prompt);
}

Status CtkvrRetriever::begin_step(std::int32_t token_id, std::int32_t position) {
  return fallback_ ? fallback_->begin_step(token_id, position) : Status();
}

Status CtkvrRetriever::attend(const RetrieveStep& step) {
  if (fallback_) return fallback_->attend(step);
  named_.clear();
  if (!looks_up_in_memory(step)) return RowRetriever::attend(step);
  const std::int64_t local = host_end(step.layer, step.cache->num_rows(step.layer));
  StaticRows* const rows = at(step.layer) < static_rows_.size() && static_rows_[at(step.layer)]
                               ? &*static_rows_[at(step.layer)]
                               : nullptr;
  if (rows != nullptr) QUIRE_RETURN_IF_ERROR(attend_static(step, *rows, local));
  QUIRE_RETURN_IF_ERROR(fetch_named(step, rows != nullptr));
  // The host attends: to a copy of the query, for a copy of the result.
  attended_.resize(query_.size());
  RetrieveStep host = step;
  host.query = query_.data();
  host.out = attended_.data();
  const std::span<const float> part = static_part_;
  const std::size_t width = query_.size();
  QUIRE_RETURN_IF_ERROR(rows == nullptr
                            ? RowRetriever::attend(host)
                            : attend_beside(host, {part.first(width), part.subspan(width),
                                                   rows->first_local(local)}));
  return write_memory(step.compute->memory().get(), step.out, attended_.data(),
                      count_of(attended_) * std::int64_t{sizeof(float)});
}

/// Attends to the rows that every step attends to on the device, which has them.
Status CtkvrRetriever::attend_static(const RetrieveStep& step, StaticRows& rows,
                                     std::int64_t local) {
  QUIRE_RETURN_IF_ERROR(rows.follow(step.compute->kv(), step.cache->view(step.layer), local));
  const std::int64_t width = std::int64_t{step.num_heads} * step.head_dim;
  QUIRE_RETURN_IF_ERROR(static_out_.reserve(buffer_memory(), width + step.num_heads));
  AttentionArgs args = attention_args(step, rows.view(local));
  args.out = static_out_.data();
  args.lse = static_out_.data() + width;
  const SequenceAttention sequence{.kv = args.kv, .position = step.position};
  return step.compute->attention().attend_each(args, std::span(&sequence, 1), DType::kF32);
}

/// Finds on the device the centroids nearest to the step's queries and the union of their lists,
/// fetches both, with the result of attend_static() if there is one, and synchronizes. The host
/// ranks the listed rows and attends to them.
Status CtkvrRetriever::fetch_named(const RetrieveStep& step, bool with_static) {
  constexpr float kLeastSquare = 1e-30f;  // zero queries are near to nothing
  const CentroidIndex& index = *index_of(step.layer);
  Compute& compute = *step.compute;
  const std::int32_t kv_heads = sequence().num_kv_heads;
  const std::int64_t n = index.num_centroids(), probes = std::min(options_.probes, n),
                     values = kv_heads * index.list_words(),
                     bytes = values * static_cast<std::int64_t>(sizeof(std::uint64_t));
  QUIRE_RETURN_IF_ERROR(
      normalised_.reserve(buffer_memory(), std::int64_t{step.num_heads} * step.head_dim));
  QUIRE_RETURN_IF_ERROR(nearest_.reserve(buffer_memory(), kv_heads * probes));
  QUIRE_ASSIGN_OR_RETURN(float* const scores, buffers_.scores(step.num_heads, n));
  // The products are cosines up to a factor common to all heads.
  QUIRE_RETURN_IF_ERROR(compute.linear().norm({.x = step.query,
                                               .weight = ones_.data(),
                                               .out = normalised_.data(),
                                               .rows = step.num_heads,
                                               .dim = step.head_dim,
                                               .eps = kLeastSquare},
                                              DType::kF32));
  QUIRE_RETURN_IF_ERROR(compute.choice().key_products({.q = normalised_.data(),
                                                       .num_heads = step.num_heads,
                                                       .scale = 1.0f,
                                                       .kv = index.centroids(),
                                                       .first_row = 0,
                                                       .num_rows = n,
                                                       .scores = scores,
                                                       .ld_scores = n}));
  QUIRE_RETURN_IF_ERROR(buffers_.choose(compute, kv_heads, step.num_heads / kv_heads, n,
                                        CandidateVote::kMaxScore, probes, nearest_.data()));
  // All in one fetch: a callback that waited while another one fails would outlive this.
  const std::int64_t width = std::int64_t{step.num_heads} * step.head_dim,
                     static_values = with_static ? width + step.num_heads : 0,
                     query_bytes = width * static_cast<std::int64_t>(sizeof(float)),
                     static_at = query_bytes + bytes,
                     all_bytes = static_at +
                                 static_values * static_cast<std::int64_t>(sizeof(float));
  QUIRE_ASSIGN_OR_RETURN(std::byte* const place, compute.fetch().place(all_bytes));
  if (with_static)
    QUIRE_RETURN_IF_ERROR(compute.linear().copy_rows(static_out_.data(), 1, static_values,
                                                     static_values,
                                                     reinterpret_cast<float*>(place + static_at)));
  QUIRE_RETURN_IF_ERROR(
      compute.linear().copy_rows(step.query, 1, width, width, reinterpret_cast<float*>(place)));
  QUIRE_RETURN_IF_ERROR(
      compute.choice().list_union({.lists = index.lists(),
                                   .chosen = nearest_.data(),
                                   .num_lists = n,
                                   .words = index.list_words(),
                                   .num_chosen = probes,
                                   .num_kv_heads = kv_heads,
                                   .rows = reinterpret_cast<std::uint64_t*>(place + query_bytes)}));
  QUIRE_RETURN_IF_ERROR(compute.fetch().fetch(
      all_bytes,
      [this, width, values, query_bytes, static_at, static_values](const std::byte* from) {
        const auto* first = reinterpret_cast<const float*>(from);
        query_.assign(first, first + width);
        const auto* part = reinterpret_cast<const float*>(from + static_at);
        static_part_.assign(part, part + static_values);
        const auto* words = reinterpret_cast<const std::uint64_t*>(from + query_bytes);
        named_.assign(words, words + values);
      }));
  return compute.fetch().deliver();
}

void CtkvrRetriever::synchronize() {
  RowRetriever::synchronize();
  if (fallback_) fallback_->synchronize();
}

RetrieveStats CtkvrRetriever::stats() const {
  RetrieveStats stats = fallback_ ? fallback_->stats() : RowRetriever::stats();
  if (fallback_) stats.choose_ms += stats_.choose_ms;
  stats.note = note_;
  return stats;
}

/// Collects the rows in the lists and those that came to the host after the prompt, ascending. A
/// layer without an index has few enough prompt rows to score all of them.
Status CtkvrRetriever::candidates(const HostStep& step, Head& head) const {
  head.rows.clear();
  const CentroidIndex* index = index_of(step.layer);
  if (index == nullptr) {
    head.rows.resize(at(step.host.end - step.host.begin));
    std::iota(head.rows.begin(), head.rows.end(), static_cast<std::int32_t>(step.host.begin));
    return {};
  }
  if (named_.empty()) {
    head.seen.assign(at((step.prompt_end + 63) / 64), 0);
    QUIRE_RETURN_IF_ERROR(index->recall(step.kv_head, step.query, options_.probes, head.seen));
  } else {
    const auto words = named_.begin() + step.kv_head * index->list_words();
    head.seen.assign(words, words + index->list_words());
  }
  append_marked(head.seen, head.rows);
  for (std::int64_t row = step.prompt_end; row < step.host.end; ++row)
    head.rows.push_back(static_cast<std::int32_t>(row));
  return {};
}

/// Scores the candidates: 8-bit codes exclude most of them, and the keys themselves decide among
/// the rest.
Status CtkvrRetriever::score(const HostStep& step, bool due, Head& head) const {
  const KeyCodes* codes = at(step.layer) < codes_.size() ? &codes_[at(step.layer)] : nullptr;
  if (codes == nullptr || codes->num_rows() == 0) return head.choice.score(step, head.rows);
  const std::int64_t wanted = std::max<std::int64_t>(policy().chosen,
                                                     due && options_.updates ? list_rows_ : 0);
  return head.choice.score_best(step, *codes, wanted + wanted / 4 + kSpareRows, head.rows);
}

/// Attends to the rows that the layer chose some steps ago; the attention computes the products
/// with them.
Result<HostCounts> CtkvrRetriever::attend_again(const HostStep& step,
                                                std::span<const std::int32_t> rows) {
  Head& head = heads_[at(step.kv_head)];
  QUIRE_RETURN_IF_ERROR(head.choice.attend_to(step, rows));
  head.rows.assign(rows.begin(), rows.end());
  head.attended = head.rows;
  const auto n = count_of(rows);
  return HostCounts{n, n, 0, 0, 1};
}

bool CtkvrRetriever::chooses(const HostStep& step) const {
  const Choice& made = choices_[at(step.layer)];
  const float* by = made.by.data() + std::int64_t{step.kv_head} * step.group * step.kv.head_dim;
  return made.due(step.host) ||
         mean_cosine(step.query, by, step.group, step.kv.head_dim) < options_.tau;
}

Result<HostCounts> CtkvrRetriever::attend_host(const HostStep& step) {
  Choice& made = choices_[at(step.layer)];
  if (!chooses(step)) return attend_again(step, made.rows[at(step.kv_head)]);
  const bool due = made.due(step.host);
  const Stopwatch watch;
  Head& head = heads_[at(step.kv_head)];
  QUIRE_RETURN_IF_ERROR(candidates(step, head));
  const auto named = count_of(head.rows);
  QUIRE_RETURN_IF_ERROR(score(step, due, head));
  const auto n = count_of(head.rows);
  const auto chosen = head.choice.best(options_.rerank ? policy().chosen : n);
  const Stopwatch attention;
  QUIRE_RETURN_IF_ERROR(head.choice.attend(step, chosen));
  const double attention_ms = attention.ms();
  if (due && options_.updates && index_of(step.layer) != nullptr) {
    // The centroids of all heads are replaced together. Lists leave out rows of the answer, which
    // are always scored.
    std::vector<std::int32_t> list = head.choice.rows_at(
        count_of(chosen) == list_rows_ ? chosen : head.choice.best(list_rows_));
    list.erase(
        std::lower_bound(list.begin(), list.end(), static_cast<std::int32_t>(step.prompt_end)),
        list.end());
    indexes_[at(step.layer)]->replace_oldest(step.kv_head, step.query, list);
  }
  head.attended = head.choice.rows_at(chosen);
  if (options_.reuse > 1) {
    made.rows[at(step.kv_head)] = head.attended;
    const std::int64_t width = step.group * std::int64_t{step.kv.head_dim};
    std::copy_n(step.query, width, made.by.data() + step.kv_head * width);
  }
  return HostCounts{named, count_of(chosen), watch.ms() - attention_ms, due ? 0 : 1, 0};
}

void CtkvrRetriever::end_step(const HostStep& step) {
  Choice& made = choices_[at(step.layer)];
  if (!made.due(step.host)) {
    --made.serves;
    return;
  }
  // From the second time on, layers take turns.
  made.serves = made.host_end < 0 ? options_.reuse - 1 - step.layer % options_.reuse
                                  : options_.reuse - 1;
  made.host_end = step.host.end;
  if (options_.updates && index_of(step.layer) != nullptr) indexes_[at(step.layer)]->advance();
}

void register_ctkvr(PlugRegistry<Retriever>& retrievers) {
  retrievers.add("ctkvr", option_table(), [](const CtkvrOptions& options) {
    return std::make_unique<CtkvrRetriever>(options);
  });
}

}  // namespace quire
