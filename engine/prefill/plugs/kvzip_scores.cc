// Scores of a context's tokens by its own repetition (KVzip, Kim et al., arXiv 2505.23416): after
// the context has run, its tokens run once more behind it, in pieces, and each token keeps the most
// attention that a repeated one pays to it. The publication puts an instruction before each piece;
// here the bare tokens repeat. This costs a second prefill, so ingest does it only on request.
#include <algorithm>
#include <iterator>
#include <numeric>

#include "base/index.h"
#include "engine/compress/window_scores.h"
#include "engine/prefill/record_kind.h"
#include "engine/record/kvzip_scores.h"

namespace quire {
namespace {

/// Tokens that are repeated together, as published.
constexpr std::int64_t kPieceTokens = 2048;
/// With less room behind the context in the model's window there is no record.
constexpr std::int64_t kLeastRoom = 64;

/// Scores the rows of a pass, of which no output is used.
class RepetitionScores final : public WindowScores {
 public:
  explicit RepetitionScores(const CompressSetup& setup)
      : WindowScores(setup, setup.question_begin, ScoreReduction::kMax) {}

  Status after_attention(LayerPass& pass) override {
    QUIRE_RETURN_IF_ERROR(WindowScores::after_attention(pass));
    if (pass.layer + 1 == setup().num_layers)
      std::fill(pass.carry_on->begin(), pass.carry_on->end(), std::uint8_t{0});
    return {};
  }
};

class RepetitionObserver final : public ContextObserver {
 public:
  RepetitionObserver(const ObservedContext& context, std::int64_t piece)
      : shape_{context.core.facts.shape.num_layers, context.core.facts.shape.num_kv_heads,
               count_of(context.ids)},
        ids_(context.ids.begin(), context.ids.end()),
        prefix_rows_(context.rows_before),
        piece_(piece),
        scores_(setup_of(context.core, prefix_rows_ + shape_.num_tokens, piece)) {}

  std::int64_t rows_left() const override { return failed_ ? 0 : shape_.num_tokens - next_; }

  Status run_more(Model& model, WorkingCache& cache, ForwardWorkspace& workspace,
                  std::int64_t max_rows) override {
    const std::int64_t done = next_ % piece_,
                       n = std::min({max_rows, piece_ - done, shape_.num_tokens - next_});
    std::vector<std::int32_t> positions(to_size(n));
    std::iota(positions.begin(), positions.end(),
              static_cast<std::int32_t>(prefix_rows_ + shape_.num_tokens + done));
    ForwardRequest request{};
    request.token_ids = std::span(ids_).subspan(at(next_), at(n));
    request.positions = positions;
    request.cache = &cache;
    request.hook = &scores_;
    const Status status = forward(model, request, workspace);
    next_ += n;
    failed_ = !status.ok();
    if (failed_ || next_ % piece_ == 0 || next_ == shape_.num_tokens)
      cache.truncate_all(prefix_rows_ + shape_.num_tokens);
    // A context without this record is of use all the same.
    return status.code() == Code::kResourceExhausted ? Status() : status;
  }

  Result<std::vector<std::byte>> finish() override {
    if (failed_) return std::vector<std::byte>();
    std::vector<std::byte> record = KvzipScoresView::header(shape_);
    for (std::int32_t layer = 0; layer < shape_.num_layers; ++layer) {
      for (std::int32_t head = 0; head < shape_.num_kv_heads; ++head) {
        const auto all = scores_.scores(layer, head, prefix_rows_ + shape_.num_tokens);
        std::transform(all.begin() + prefix_rows_, all.end(), std::back_inserter(record),
                       KvzipScoresView::code_of);
      }
    }
    return record;
  }

 private:
  static CompressSetup setup_of(const PassResources& core, std::int64_t rows, std::int64_t piece) {
    CompressSetup setup;
    setup.rope = &core.model->rope();
    setup.num_layers = core.facts.shape.num_layers;
    setup.num_heads = core.facts.num_heads;
    setup.num_kv_heads = core.facts.shape.num_kv_heads;
    setup.head_dim = core.facts.shape.head_dim;
    setup.question_begin = static_cast<std::int32_t>(rows);
    setup.question_end = static_cast<std::int32_t>(rows + piece);
    return setup;
  }

  const KvzipScoresShape shape_;
  const std::vector<std::int32_t> ids_;
  const std::int64_t prefix_rows_, piece_;
  RepetitionScores scores_;
  std::int64_t next_ = 0;
  bool failed_ = false;  ///< the cache had no room for a piece
};

class KvzipScoresKind final : public RecordKind {
 public:
  std::uint32_t index() const override { return kKvzipScoresIndex; }
  bool required() const override { return false; }
  bool always() const override { return false; }

  std::unique_ptr<ContextObserver> observe(const ObservedContext& context) const override {
    const std::int64_t room = context.core.model->rope().max_positions() - count_of(context.ids) -
                              context.rows_before;
    if (room < kLeastRoom) return nullptr;
    return std::make_unique<RepetitionObserver>(context, std::min(room, kPieceTokens));
  }
  std::int64_t rows_behind(std::int64_t num_tokens, std::int64_t room) const override {
    return room < kLeastRoom ? 0 : std::min({num_tokens, room, kPieceTokens});
  }
  Result<std::any> parse(std::span<const std::byte> record,
                         const RecordOwner& owner) const override {
    QUIRE_ASSIGN_OR_RETURN(const KvzipScoresView view, KvzipScoresView::parse(record));
    const KvzipScoresShape wanted{owner.facts.shape.num_layers, owner.facts.shape.num_kv_heads,
                                  owner.layout.num_tokens()};
    if (!(view.shape() == wanted)) return Status::corruption("they are those of another context");
    return std::any(view);
  }
};

}  // namespace

void register_kvzip_scores(PlugRegistry<RecordKind>& kinds) {
  kinds.add("kvzip_scores", [] { return std::make_unique<KvzipScoresKind>(); });
}

}  // namespace quire
