// Tokens and key sets of an issuer: what is taken is within its bounds, and no token holds that was
// not signed.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "server/access/web_token.h"

using namespace quire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto keys = WebKeys::parse(text); keys.ok() && (*keys)->size() == 0) std::abort();
  const auto token = parse_web_token(text);
  if (!token.ok()) return 0;
  if (size > kMaxTokenBytes || token->signature.empty() ||
      (token->algorithm != "RS256" && token->algorithm != "ES256"))
    std::abort();
  // The point is P-256's own base point, whose private key is 1.
  static const auto known = WebKeys::parse(
      R"({"keys":[{"kty":"EC","crv":"P-256","kid":"k","x":"axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpY","y":"T-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU"}]})");
  if (!known.ok()) std::abort();
  (void)(*known)->verify(*token);
  TokenRules rules;
  rules.issuer = "i";
  rules.audience = "a";
  const auto granted = granted_by(*token, rules, 1'700'000'000);
  if (granted.ok() && (granted->namespaces.empty() || granted->name.size() > 300)) std::abort();
  return 0;
}
