#include "engine/tokenizer/sha256.h"

#include <openssl/evp.h>

#include "kernels/base/status.h"

namespace quire::tokenizer_internal {

Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  QUIRE_CHECK(context_ != nullptr && EVP_DigestInit_ex(static_cast<EVP_MD_CTX*>(context_), EVP_sha256(), nullptr) == 1,
              "SHA-256 is not available");
}

Sha256::~Sha256() { EVP_MD_CTX_free(static_cast<EVP_MD_CTX*>(context_)); }

void Sha256::add(std::string_view field) {
  add(static_cast<std::uint64_t>(field.size()));
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), field.data(), field.size());
}

void Sha256::add(std::uint64_t value) {
  unsigned char bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<unsigned char>(value >> (8 * i));
  EVP_DigestUpdate(static_cast<EVP_MD_CTX*>(context_), bytes, sizeof bytes);
}

std::array<std::uint8_t, 32> Sha256::finish() {
  std::array<std::uint8_t, 32> digest{};
  unsigned int size = 0;
  EVP_DigestFinal_ex(static_cast<EVP_MD_CTX*>(context_), digest.data(), &size);
  return digest;
}

}  // namespace quire::tokenizer_internal
