#include <algorithm>

#include "server/handlers/common.h"
#include "server/handlers/handlers.h"
#include "server/http/entity_tags.h"
#include "server/http/gzip_writer.h"
#include "server/ui/pages.h"

namespace quire {
namespace {

/// Everything comes from this service, nothing is inline, and no other site may frame the page.
constexpr std::string_view kPolicy =
    "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "font-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

/// How long browsers may use a reply without asking.
enum class Keep : std::uint8_t { kAsk, kForever };

void reply_page(Call& call, const Page* page, Keep keep) {
  if (!call.services.config()->server.ui)
    return call.fail(make_problem("route_not_found", "the web page is off: server.ui is false"));
  if (!page)
    return call.fail(make_problem("route_not_found",
                                  "the web page has no file " + call.instance.substr(0, 256)));
  const Headers& asked = call.request().headers;
  const bool gzip = takes_gzip(asked);
  const std::string& tag = gzip ? page->gzip_etag : page->etag;
  HttpResponse r;
  r.headers.set("ETag", "\"" + tag + "\"");
  r.headers.set("Cache-Control",
                keep == Keep::kForever ? "public, max-age=31536000, immutable" : "no-cache");
  r.headers.set("Vary", "Accept-Encoding");
  r.headers.set("Content-Security-Policy", std::string(kPolicy));
  r.headers.set("X-Content-Type-Options", "nosniff");
  r.headers.set("Referrer-Policy", "no-referrer");
  r.headers.set("Cross-Origin-Resource-Policy", "same-origin");
  const auto given = joined_fields(asked, "if-none-match");
  const auto tags = given ? parse_entity_tags(*given) : std::nullopt;
  const auto named = [&](const std::vector<std::string>& list) {
    return std::find(list.begin(), list.end(), tag) != list.end();
  };
  if (tags && (tags->any || named(tags->strong) || named(tags->weak))) {
    r.status = 304;
    return call.reply(std::move(r));
  }
  r.content_type = page->content_type;
  if (gzip) r.headers.set("Content-Encoding", "gzip");
  r.body = gzip ? page->gzip : page->text;
  call.reply(std::move(r));
}

}  // namespace

namespace handlers {

void ui_page(std::shared_ptr<Call> call) { reply_page(*call, find_page("index.html"), Keep::kAsk); }

void ui_file(std::shared_ptr<Call> call) {
  // A page that was open during an upgrade asks for an earlier version: it gets today's file.
  const bool current = call->path_param("version") == ui_version();
  reply_page(*call, find_page(call->path_param("file")), current ? Keep::kForever : Keep::kAsk);
}

}  // namespace handlers
}  // namespace quire
