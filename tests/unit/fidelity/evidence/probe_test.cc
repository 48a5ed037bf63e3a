// Probes are drawn from one version of a document, or not at all.
#include "fidelity/evidence/probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "tests/support/stub_services.h"

namespace quire {
namespace {

constexpr std::string_view kSentence = "The mill at the river was built by a weaver of the town.";

/// Documents whose text may be another version's than their chunks.
class Documents : public test::StubIngest {
 public:
  std::string text;          ///< what content() returns
  std::string hash = "one";  ///< of the version that get() sees
  std::uint64_t end = 0;     ///< of the last chunk, bytes of the version that resolve() sees

  Result<Resolved> resolve(std::string_view, std::span<const std::string> ids,
                           const ResolveOptions&) override {
    Resolved r;
    for (const std::string& id : ids) {
      ResolvedDocument d;
      d.id = id;
      d.content_hash = "one";
      for (int i = 0; i < 2; ++i) {
        QueryContext c;
        c.document_id = id;
        c.chunk = i;
        c.token_ids = {1, 2, 3};
        d.contexts.push_back(std::move(c));
      }
      d.byte_ranges = {{0, kSentence.size()}, {kSentence.size(), end}};
      r.documents.push_back(std::move(d));
    }
    return r;
  }
  Result<std::string> content(std::string_view, std::string_view) override { return text; }
  Result<DocumentInfo> get(std::string_view, std::string_view id) override {
    DocumentInfo d;
    d.id = id;
    d.content_hash = hash;
    return d;
  }
};

class ProbeMakerTest : public ::testing::Test {
 protected:
  ProbeMakerTest() {
    for (int i = 0; i < 4; ++i) text_ += std::string(kSentence) + " ";
    documents_.text = text_;
    documents_.end = text_.size();
  }
  /// Draws many probes and returns how many there were.
  int drawn(std::vector<std::string> ids = {"a", "b"}) {
    ProbeMaker maker(engine_, documents_, 1000, 7);
    int n = 0;
    for (int i = 0; i < 50; ++i) {
      const auto probe = maker.make("default", ids);
      EXPECT_TRUE(probe.ok()) << probe.status().to_string();
      if (probe.ok() && *probe) ++n;
    }
    return n;
  }

  std::string text_;
  Documents documents_;
  test::StubEngine engine_;
};

TEST_F(ProbeMakerTest, DrawsFromADocumentThatStays) { EXPECT_GT(drawn(), 25); }

TEST_F(ProbeMakerTest, ADocumentThatIsReplacedMeanwhileGivesNone) {
  documents_.text = kSentence.substr(0, 10);  // shorter than the chunks of the version before
  documents_.hash = "two";
  EXPECT_EQ(drawn(), 0);
  documents_.text = text_;
  EXPECT_EQ(drawn(), 0) << "also where the ranges of one version fit into the other";
}

TEST_F(ProbeMakerTest, RangesBeyondTheTextGiveNone) {
  documents_.text = kSentence.substr(0, 10);
  EXPECT_EQ(drawn(), 0);
  documents_.text = text_;
  documents_.end = kSentence.size() - 1;  // ends before it begins
  EXPECT_EQ(drawn(), 0);
}

TEST_F(ProbeMakerTest, APromptHoldsSeveralContexts) {
  ProbeMaker maker(engine_, documents_, 1000, 7);
  const std::vector<std::string> two = {"a", "b"};
  for (int i = 0; i < 50; ++i) {
    const auto probe = maker.make("default", two);
    ASSERT_TRUE(probe.ok());
    if (!*probe) continue;
    EXPECT_GE((*probe)->request.contexts.size(), 2u);
  }
  // One chunk fills the prompt.
  ProbeMaker narrow(engine_, documents_, 4, 7);
  for (int i = 0; i < 50; ++i) EXPECT_FALSE(narrow.make("default", two)->has_value());
}

TEST_F(ProbeMakerTest, TheSameTextIsTheSameSubjectAmongOtherDocuments) {
  std::set<std::string> subjects;
  std::size_t n = 0;
  ProbeMaker maker(engine_, documents_, 1000, 7);
  for (int i = 0; i < 50; ++i) {
    const std::vector<std::string> ids = {"a", "b" + std::to_string(i)};
    const auto probe = maker.make("default", ids);
    ASSERT_TRUE(probe.ok());
    if (!*probe) continue;
    ++n;
    subjects.insert(subject_of(**probe));
  }
  EXPECT_GT(n, 25u);
  // One sentence, and how the document goes on behind its first chunk.
  EXPECT_LE(subjects.size(), 2u);
}

/// Answers with the same logits at every position; `odd` says that of token 1 for a request.
RunQuery answers(const std::function<float(const QueryRequest&)>& odd) {
  return [odd](QueryRequest request, const std::shared_ptr<QuerySink>& sink) {
    for (std::size_t i = 0; i < request.sampling.forced_tokens.size(); ++i) {
      const float logits[] = {1, odd(request), 0, 0.5};
      sink->on_logits(logits);
    }
    sink->on_done({}, {}, {}, FinishReason::kLength);
    return Status();
  };
}

TEST(Probe, ACandidateThatIsNotFiniteCountsAgainstItself) {
  Probe probe;
  probe.answer = {1, 2};
  probe.request.contexts.resize(2);
  const auto candidates = *parse_strategy_list("reuse,prophetkv");
  const float nan = std::numeric_limits<float>::quiet_NaN();
  auto measured = measure_probe(probe, candidates, answers([nan](const QueryRequest& q) {
                                  return q.cache.strategy == "reuse" ? nan : 0.25f;
                                }));
  ASSERT_TRUE(measured.ok()) << measured.status().to_string();
  ASSERT_EQ(measured->scores.size(), 2u);
  EXPECT_EQ(measured->scores[0].agreement, 0);
  EXPECT_EQ(measured->scores[0].nll, measured->nll_without);
  EXPECT_EQ(measured->scores[1].agreement, 1);
  EXPECT_TRUE(std::isfinite(measured->scores[1].nll));
  // Without a finite reference there is nothing to hold a candidate to.
  measured = measure_probe(probe, candidates, answers([nan](const QueryRequest& q) {
                             return q.cache.strategy == "recompute" ? nan : 0.25f;
                           }));
  EXPECT_EQ(measured.status().code(), Code::kInternal);
}

}  // namespace
}  // namespace quire
