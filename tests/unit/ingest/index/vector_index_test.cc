#include "ingest/index/vector_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

namespace quire {
namespace {

constexpr std::int64_t kDimension = 24;

/// Returns vectors of length 1 around `centres` directions.
std::vector<float> clustered(std::int64_t n, std::int64_t centres, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> middle(static_cast<std::size_t>(centres * kDimension)), out;
  for (float& x : middle) x = normal(random);
  for (std::int64_t i = 0; i < n; ++i) {
    std::vector<float> v(kDimension);
    double squares = 0;
    for (std::int64_t c = 0; c < kDimension; ++c) {
      v[static_cast<std::size_t>(c)] =
          middle[static_cast<std::size_t>(i % centres * kDimension + c)] + 0.3f * normal(random);
      squares += v[static_cast<std::size_t>(c)] * v[static_cast<std::size_t>(c)];
    }
    for (const float x : v) out.push_back(static_cast<float>(x / std::sqrt(squares)));
  }
  return out;
}

std::span<const float> row(const std::vector<float>& vectors, std::int64_t i) {
  return std::span(vectors).subspan(static_cast<std::size_t>(i * kDimension), kDimension);
}

VectorIndex filled(const std::vector<float>& vectors) {
  auto index = VectorIndex::make(kDimension);
  EXPECT_TRUE(index.ok());
  std::vector<std::int64_t> labels(vectors.size() / kDimension);
  std::iota(labels.begin(), labels.end(), 0);
  EXPECT_TRUE(index->add(labels, vectors).ok());
  return std::move(*index);
}

/// Computes the meaning of a search by comparing every vector.
std::vector<std::int64_t> nearest(const std::vector<float>& vectors, std::span<const float> query,
                                  std::size_t k, const VectorIndex::Filter& filter = {}) {
  std::vector<std::pair<float, std::int64_t>> all;
  for (std::int64_t i = 0; i < static_cast<std::int64_t>(vectors.size()) / kDimension; ++i) {
    if (filter && !filter(i)) continue;
    const auto v = row(vectors, i);
    all.emplace_back(-std::inner_product(v.begin(), v.end(), query.begin(), 0.0f), i);
  }
  std::sort(all.begin(), all.end());
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < std::min(k, all.size()); ++i) out.push_back(all[i].second);
  return out;
}

std::vector<std::int64_t> labels_of(const Result<std::vector<VectorMatch>>& found) {
  EXPECT_TRUE(found.ok()) << found.status().to_string();
  std::vector<std::int64_t> out;
  if (found.ok()) {
    for (const VectorMatch& m : *found) out.push_back(m.label);
  }
  return out;
}

TEST(VectorIndexTest, OneListComparesEveryVector) {
  const auto vectors = clustered(300, 7, 1), queries = clustered(20, 20, 2);
  const VectorIndex index = filled(vectors);
  EXPECT_EQ(index.size(), 300);
  EXPECT_EQ(index.num_lists(), 1);
  EXPECT_EQ(index.dimension(), kDimension);
  for (std::int64_t q = 0; q < 20; ++q)
    EXPECT_EQ(labels_of(index.search(row(queries, q), 10)), nearest(vectors, row(queries, q), 10));
  const auto self = index.search(row(vectors, 42), 1);
  ASSERT_EQ(labels_of(self), std::vector<std::int64_t>{42});
  EXPECT_NEAR(self->front().score, 1, 1e-5);
}

TEST(VectorIndexTest, ASmallOrEmptyIndexGivesWhatItHas) {
  auto index = VectorIndex::make(kDimension);
  ASSERT_TRUE(index.ok());
  const auto vectors = clustered(3, 3, 3);
  EXPECT_TRUE(labels_of(index->search(row(vectors, 0), 5)).empty());
  EXPECT_TRUE(index->remove(std::vector<std::int64_t>{1, 2}).ok());
  ASSERT_TRUE(index->add(std::vector<std::int64_t>{7, 8, 9}, vectors).ok());
  EXPECT_EQ(labels_of(index->search(row(vectors, 1), 50)).size(), 3u);
  EXPECT_TRUE(labels_of(index->search(row(vectors, 1), 0)).empty());
  const auto copy = index->in_lists(100);
  ASSERT_TRUE(copy.ok());
  EXPECT_EQ(copy->size(), 3);
  EXPECT_EQ(labels_of(copy->search(row(vectors, 1), 3)).size(), 3u);
}

TEST(VectorIndexTest, WhatIsRemovedIsGoneAndTheRestStays) {
  const auto vectors = clustered(200, 5, 4);
  for (const std::int64_t lists : {1, 14}) {
    const VectorIndex whole = filled(vectors);
    auto index = whole.in_lists(lists);
    ASSERT_TRUE(index.ok());
    std::vector<std::int64_t> odd;
    for (std::int64_t i = 1; i < 200; i += 2) odd.push_back(i);
    ASSERT_TRUE(index->remove(odd).ok());
    EXPECT_EQ(index->size(), 100);
    const auto even = [](std::int64_t label) { return label % 2 == 0; };
    EXPECT_EQ(labels_of(index->search(row(vectors, 31), 20, even)),
              nearest(vectors, row(vectors, 31), 20, even))
        << lists;
  }
}

TEST(VectorIndexTest, AFilteredSearchIsExactInAnyNumberOfLists) {
  const auto vectors = clustered(2000, 11, 5), queries = clustered(10, 10, 6);
  const auto index = filled(vectors).in_lists(44);
  ASSERT_TRUE(index.ok());
  EXPECT_EQ(index->num_lists(), 44);
  const std::set<std::int64_t> wanted{3, 5, 900, 1500, 1501, 1999};
  const auto filter = [&](std::int64_t label) { return wanted.contains(label); };
  for (std::int64_t q = 0; q < 10; ++q)
    EXPECT_EQ(labels_of(index->search(row(queries, q), 4, filter)),
              nearest(vectors, row(queries, q), 4, filter));
}

TEST(VectorIndexTest, ListsFindMostOfWhatIsNear) {
  const auto vectors = clustered(6000, 60, 7);
  const auto index = filled(vectors).in_lists(80);
  ASSERT_TRUE(index.ok());
  std::int64_t found = 0, wanted = 0;
  for (std::int64_t q = 0; q < 6000; q += 60) {
    const auto near = nearest(vectors, row(vectors, q), 10);
    const auto got = labels_of(index->search(row(vectors, q), 10));
    EXPECT_EQ(got.size(), 10u);
    EXPECT_TRUE(std::find(got.begin(), got.end(), q) != got.end())
        << "a vector does not find itself";
    for (const std::int64_t label : near) found += std::count(got.begin(), got.end(), label);
    wanted += 10;
  }
  EXPECT_GE(found, wanted * 9 / 10);
}

TEST(VectorIndexTest, VectorsMayBeAddedToLists) {
  const auto vectors = clustered(1000, 9, 8), more = clustered(50, 9, 9);
  auto index = filled(vectors).in_lists(31);
  ASSERT_TRUE(index.ok());
  std::vector<std::int64_t> labels(50);
  std::iota(labels.begin(), labels.end(), 5000);
  ASSERT_TRUE(index->add(labels, more).ok());
  EXPECT_EQ(index->size(), 1050);
  for (std::int64_t i = 0; i < 50; ++i)
    EXPECT_EQ(labels_of(index->search(row(more, i), 1)), std::vector<std::int64_t>{5000 + i});
}

}  // namespace
}  // namespace quire
