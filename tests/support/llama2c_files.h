/// Converts models in the layout of llama2.c to Hugging Face folders.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "tests/support/model_files.h"

namespace quire::testing {

/// Writes a model of llama2.c's v0 layout as a safetensors folder.
inline void convert_llama2c(const fs::path& bin, const fs::path& out) {
  const std::string bytes = read_file(bin);
  std::int32_t head[7];
  ASSERT_GE(bytes.size(), sizeof head);
  std::memcpy(head, bytes.data(), sizeof head);
  const std::int64_t dim = head[0], hidden = head[1], layers = head[2], heads = head[3],
                     kv_heads = head[4], vocab = head[5];
  const std::int64_t kv_dim = dim / heads * kv_heads;
  const char* at = bytes.data() + sizeof head;
  const char* end = bytes.data() + bytes.size();
  std::vector<FileTensor> tensors;
  const auto take = [&](const std::string& name, std::vector<std::int64_t> shape) {
    std::int64_t n = 4;
    for (std::int64_t d : shape) n *= d;
    ASSERT_LE(n, end - at);
    tensors.push_back(
        {name, "F32", std::move(shape), std::string(at, static_cast<std::size_t>(n))});
    at += n;
  };
  const auto take_all = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    for (std::int64_t l = 0; l < layers; ++l)
      take("model.layers." + std::to_string(l) + "." + name + ".weight", shape);
  };
  take("model.embed_tokens.weight", {vocab, dim});
  take_all("input_layernorm", {dim});
  take_all("self_attn.q_proj", {dim, dim});
  take_all("self_attn.k_proj", {kv_dim, dim});
  take_all("self_attn.v_proj", {kv_dim, dim});
  take_all("self_attn.o_proj", {dim, dim});
  take_all("post_attention_layernorm", {dim});
  take_all("mlp.gate_proj", {hidden, dim});
  take_all("mlp.down_proj", {dim, hidden});
  take_all("mlp.up_proj", {hidden, dim});
  take("model.norm.weight", {dim});
  write_file(out / "model.safetensors", safetensors_bytes(tensors));
}

/// Writes the vocabulary (int32 longest; float score, int32 length, bytes of each) as a
/// sentencepiece file: BPE with byte fallback.
inline void convert_llama2c_tokenizer(const fs::path& bin, std::int32_t vocab,
                                      const fs::path& out) {
  const std::string bytes = read_file(bin);
  std::size_t at = 4;
  std::string model;
  const auto varint = [](std::size_t v) {
    std::string s;
    for (; v >= 128; v >>= 7) s.push_back(static_cast<char>(v | 128));
    s.push_back(static_cast<char>(v));
    return s;
  };
  const auto field = [&](int number, const std::string& value) {
    return varint(static_cast<std::size_t>(number) * 8 + 2) + varint(value.size()) + value;
  };
  const auto number = [&](int name, std::size_t value) {
    return varint(static_cast<std::size_t>(name) * 8) + varint(value);
  };
  for (std::int32_t id = 0; id < vocab; ++id) {
    std::int32_t length = 0;
    ASSERT_LE(at + 8, bytes.size());
    std::memcpy(&length, bytes.data() + at + 4, 4);
    ASSERT_GE(length, 0);
    ASSERT_LE(at + 8 + static_cast<std::size_t>(length), bytes.size());
    const std::string raw = bytes.substr(at + 8, static_cast<std::size_t>(length));
    const bool byte = raw.size() == 6 && raw.starts_with("<0x");
    std::string piece;
    for (const char c : raw) piece += c == ' ' ? std::string("\xE2\x96\x81") : std::string(1, c);
    if (id < 3) piece = id == 0 ? "<unk>" : id == 1 ? "<s>" : "</s>";
    std::string score("\x15", 1);
    score += bytes.substr(at, 4);
    model += field(1, field(1, piece) + score + number(3, id == 0 ? 2 : id < 3 ? 3 : byte ? 6 : 1));
    at += 8 + static_cast<std::size_t>(length);
  }
  model += field(2, number(3, 2) + number(35, 1));  // trainer: BPE, byte_fallback
  model += field(3, field(1, "identity"));
  write_file(out / "tokenizer.model", model);
}

}  // namespace quire::testing
