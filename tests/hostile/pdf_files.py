"""PDFs that lie or cost a lot. Each is small, and written by hand: no library makes such."""

import struct
import zlib

PAGE = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 300] /Contents 4 0 R /Resources 5 0 R >>"
FONT = b"<< /Font << /F 6 0 R >> >>"
HELVETICA = b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
SHOWN = b"BT /F 12 Tf 20 200 Td (%s) Tj ET\n"


def pdf(objects, trailer=b"", table=None, version=b"1.7"):
    """Returns a PDF of the objects 1, 2 and so on. `table` stands in the place of the table of
    their offsets."""
    out, offsets = b"%PDF-" + version + b"\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj\n" % number + body + b"\nendobj\n"
    start = len(out)
    if table is None:
        entries = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
        table = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1) + entries
    out += table + b"trailer\n<< /Size %d /Root 1 0 R " % (len(objects) + 1) + trailer
    return out + b">>\nstartxref\n%d\n%%%%EOF\n" % start


def stream(data, more=b"", length=None):
    length = len(data) if length is None else length
    return b"<< /Length %d " % length + more + b">>\nstream\n" + data + b"\nendstream"


def packed(data, times=1):
    for _ in range(times):
        data = zlib.compress(data, 9)
    return stream(data, b"/Filter [" + b"/FlateDecode " * times + b"]")


def document(content, pages=b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>", more=(), **how):
    """Returns a PDF of one page with this content stream."""
    catalog = b"<< /Type /Catalog /Pages 2 0 R >>"
    return pdf([catalog, pages, PAGE, content, FONT, HELVETICA, *more], **how)


def zeros(megabytes):
    """Returns what expands to so many megabytes of white space."""
    compressor = zlib.compressobj(9)
    block = b" " * (1 << 20)
    return b"".join(compressor.compress(block) for _ in range(megabytes)) + compressor.flush()


def deep_pages(levels):
    """Returns a PDF whose page lies below so many nodes, of which each has one child."""
    nodes = [b"<< /Type /Catalog /Pages 2 0 R >>"]
    for level in range(levels):
        number = level + 2
        nodes.append(b"<< /Type /Pages /Parent %d 0 R /Kids [%d 0 R] /Count 1 >>" % (
            max(2, number - 1), number + 1))  # fmt: skip
    page = PAGE.replace(b"4 0 R", b"%d 0 R" % (levels + 3))
    page = page.replace(b"5 0 R", b"%d 0 R" % (levels + 4))
    words = stream(SHOWN % b"deep down")
    return pdf([*nodes, page, words, FONT.replace(b"6 0 R", b"%d 0 R" % (levels + 5)), HELVETICA])


def nested(text, levels):
    return b"[" * levels + text + b"]" * levels


def forms(levels, uses):
    """Returns a PDF whose page draws a form, which draws another one several times, and so on."""
    objects = []
    for level in range(levels):
        name = b"/X << /X %d 0 R >>" % (8 + level)
        draw = b"/X Do " * uses if level + 1 < levels else SHOWN % b"form"
        resources = b"/Resources << /XObject " + name[3:] + b" /Font << /F 6 0 R >> >>"
        objects.append(
            stream(draw, b"/Type /XObject /Subtype /Form /BBox [0 0 300 300] " + resources)
        )
    font = b"<< /Font << /F 6 0 R >> /XObject << /X 7 0 R >> >>"
    catalog = b"<< /Type /Catalog /Pages 2 0 R >>"
    pages = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
    return pdf([catalog, pages, PAGE, stream(b"/X Do\n"), font, HELVETICA, *objects])


def encrypted(iterations=None):
    """Returns a PDF that says that it is encrypted, by a password or with nonsense."""
    key = b"(" + b"k" * 32 + b")"
    how = b"<< /Filter /Standard /V 2 /R 3 /Length 128 /P -4 /O " + key + b" /U " + key + b" >>"
    if iterations is not None:
        how = b"<< /Filter /Standard /V 5 /R 6 /Length %d /P -4 /O (x) /U (x) >>" % iterations
    return document(
        stream(SHOWN % b"secret"), more=(how,), trailer=b"/Encrypt 7 0 R /ID [(a) (a)] "
    )


def object_stream_bomb(count):
    """Returns a PDF with a stream of objects that says that it has more than fit."""
    data = zlib.compress(b"8 0 << /A 1 >>")
    more = b"/Type /ObjStm /N %d /First 4 /Filter /FlateDecode " % count
    return document(stream(SHOWN % b"text"), more=(stream(data, more),))


def xref_stream(size, widths, data=b"\0" * 100):
    """Returns a PDF whose table is a stream with these widths of its columns."""
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>", b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>", PAGE,
        stream(SHOWN % b"text"), FONT, HELVETICA,
    ]  # fmt: skip
    out = b"%PDF-1.7\n"
    for number, body in enumerate(objects, 1):
        out += b"%d 0 obj\n" % number + body + b"\nendobj\n"
    start = len(out)
    more = b"/Type /XRef /Size %d /W [%s] /Root 1 0 R " % (size, widths)
    return out + b"7 0 obj\n" + stream(data, more) + b"\nendobj\nstartxref\n%d\n%%%%EOF\n" % start


def chained_tables():
    """Returns a PDF whose table names itself as the one before."""
    whole = document(stream(SHOWN % b"text"))
    start = int(whole.rsplit(b"startxref\n", 1)[1].split()[0])
    return whole.replace(b"/Root 1 0 R ", b"/Root 1 0 R /Prev %d " % start)


def image(width, height, data=b"\0" * 10, filters=b""):
    more = b"/Type /XObject /Subtype /Image /Width %d /Height %d " % (width, height)
    return stream(data, more + b"/ColorSpace /DeviceRGB /BitsPerComponent 8 " + filters)


def with_image(body):
    font = b"<< /Font << /F 6 0 R >> /XObject << /I 7 0 R >> >>"
    words = SHOWN % b"beside an image" + b"/I Do\n"
    catalog = b"<< /Type /Catalog /Pages 2 0 R >>"
    pages = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
    return pdf([catalog, pages, PAGE, stream(words), font, HELVETICA, body])


WORDS = stream(SHOWN % b"plain words")
PLAIN = document(WORDS)
NAME_AND_ZEROS = b"%PDF-1.7\n" + bytes(1 << 20)
LIES = struct.pack(">Q", (1 << 64) - 1)


def hostile():
    """Yields names and PDFs. Each costs a reader little, or is ended by a limit soon."""
    yield "no table", document(WORDS, table=b"")
    yield "a table of nonsense", document(WORDS, table=b"xref\n0 99999999\n" + b"9" * 2000 + b"\n")
    yield "offsets past the end", document(
        WORDS, table=b"xref\n0 7\n" + b"9999999999 00000 n \n" * 7)  # fmt: skip
    yield "a table that says 4,000,000,000 entries", document(
        WORDS, table=b"xref\n0 4000000000\n0000000000 65535 f \n")  # fmt: skip
    yield "a table that names itself", chained_tables()
    yield "a stream of a table with wide columns", xref_stream(2147483647, b"4 8 4")
    yield "a stream of a table with a negative column", xref_stream(10, b"1 -2147483648 4")
    yield "a length past the end", document(stream(SHOWN % b"words", length=2147483647))
    yield "a length that is negative", document(stream(SHOWN % b"words", length=-1))
    yield "a length that is itself", document(
        b"<< /Length 4 0 R >>\nstream\n" + SHOWN % b"words" + b"\nendstream")  # fmt: skip
    yield "4,000,000,000 pages", document(
        WORDS, pages=b"<< /Type /Pages /Kids [3 0 R] /Count 2147483647 >>")  # fmt: skip
    yield "a negative number of pages", document(
        WORDS, pages=b"<< /Type /Pages /Kids [3 0 R] /Count -5 >>")  # fmt: skip
    yield "pages that hold themselves", document(
        WORDS, pages=b"<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 1000000 >>")  # fmt: skip
    yield "20,000 levels of pages", deep_pages(20000)
    yield "100,000 levels of arrays", document(WORDS, more=(nested(b"1", 100000),)).replace(
        b"/Count 1 ", b"/Count 1 /X 7 0 R ", 1)  # fmt: skip
    yield "a page of 100,000 levels", document(
        stream(nested(b"(x)", 100000) + b" TJ\n" + SHOWN % b"words"))  # fmt: skip
    yield "300,000 states on a stack", document(stream(b"q " * 300000 + SHOWN % b"words"))
    yield "100 MB of white space", document(
        stream(zeros(100), b"/Filter /FlateDecode "))  # fmt: skip
    yield "a bomb in a bomb", document(
        stream(zlib.compress(zeros(100), 9), b"/Filter [/FlateDecode /FlateDecode] "))  # fmt: skip
    yield "2,000 filters", document(stream(b"x", b"/Filter [" + b"/ASCIIHexDecode " * 2000 + b"] "))
    yield "forms that multiply", forms(5, 10)
    yield "a form that draws itself", document(
        stream(b"/X Do\n"), more=(stream(b"/X Do\n", b"/Type /XObject /Subtype /Form "
        b"/BBox [0 0 9 9] /Resources << /XObject << /X 7 0 R >> >> "),)).replace(
        FONT, b"<< /XObject << /X 7 0 R >> >>")  # fmt: skip
    yield "an image of 10^18 pixels", with_image(image(1000000000, 1000000000))
    yield "an image of many filters", with_image(
        image(30000, 30000, zeros(100), b"/Filter /FlateDecode "))  # fmt: skip
    yield "a JPEG 2000 that lies", with_image(
        image(9, 9, b"\0\0\0\x0cjP  \r\n\x87\n" + LIES * 20, b"/Filter /JPXDecode "))  # fmt: skip
    yield "a JBIG2 that lies", with_image(
        image(9, 9, b"\0\0\0\0\x30\0\x01" + LIES * 20, b"/Filter /JBIG2Decode "))  # fmt: skip
    yield "a stream of objects that lies", object_stream_bomb(2147483647)
    yield "a password", encrypted()
    yield "a nonsense of a password", encrypted(2147483647)
    yield "only its first bytes", PLAIN[:40]
    yield "a name and zeros", NAME_AND_ZEROS
