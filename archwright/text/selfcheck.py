"""A text of difficult cases for tokenizers."""

PROBE = (
    "def f(x, *args):\n    '''Don't  panic:\tit's 12345678.90 e-mails'''\r\n\r\n\treturn x['a_b']\n"
    "\n\n   \n  # ---- ==== ...\n        if HTTPServer2.isOK() and not self._x: pass  \n\n"
    "I'LL we've they'd  You're 's' 1st 2nd 0x1F 1,000,000\u00a0km\u2003wide\u3000full\u0085next\n"
    "Größe, naïve cafe\u0301, Ελλάδα, привет мир, שלום, مرحبا بك, नमस्ते दुनिया, สวัสดี\n"
    "你好，世界。这是一个测试！日本語のテキスト、한국어 문장\n"
    "😀👩‍👩‍👧‍👦🇩🇪 ½ Ⅷ ²³ ٣٤٥ … — “quoted” «x» €5\n"
    " \ufeff\u200b\u2028line\u2029par\x0b\x0c\x1c\x1f\x7f\n"
    "<|endoftext|></s>[SEP] <html><b>bold</b></html> {'k':[1,2,{\"a\":null}]}; a+=b//c**2&~d|e^f\n"
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa          trailing   \t \n"
)
