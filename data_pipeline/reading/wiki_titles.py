"""Titles of the sections that close an article of Wikipedia with pointers elsewhere, in many languages."""

from __future__ import annotations

import re

_TITLES = (
    "see also|references|external links?|notes|further reading|bibliography|sources|footnotes|links",
    "المراجع|مراجع|انظر أيض(?:ًا|اً|ا)|وصلات خارجية|المصادر|مصادر|هوامش|ملاحظات",
    "odkazy|reference|literatura|externí odkazy|související články|poznámky",
    "einzelnachweise|weblinks?|siehe auch|literatur|anmerkungen|quellen|fußnoten",
    "referencias|enlaces externos|véase también|bibliografía|notas|fuentes",
    "منابع|جستارهای وابسته|پیوند به بیرون|پانویس|یادداشت‌ها",
    "voir aussi|références|notes et références|liens externes|bibliographie|annexes|articles connexes",
    "सन्दर्भ|संदर्भ|इन्हें भी देखें|बाहरी कड़ियाँ|बाहरी कड़ियाँ|बाहरी कड़ियां|टिप्पणी",
    "referensi|lihat pula|lihat juga|pranala luar|catatan|daftar pustaka|bacaan lanjutan",
    "note|bibliografia|voci correlate|collegamenti esterni|altri progetti",
    "脚注|注釈|出典|参考文献|関連項目|関連文献|外部リンク|注記",
    "각주|같이 보기|외부 링크|참고 문헌|참고 자료|출처|주석|내용주",
    "അവലംബം|പുറത്തേക്കുള്ള കണ്ണികൾ|ഇതും കാണുക|കുറിപ്പുകൾ",
    "zie ook|externe links?|bronnen|referenties|noten|voetnoten|literatuur|bronnen, noten en/of referenties",
    "zobacz też|przypisy|linki zewnętrzne|uwagi",
    "referências|ver também|ligações externas",
    "примечания|ссылки|см\\. также|литература|источники|комментарии",
    "se även|referenser|källor|externa länkar|noter|fotnoter|litteratur",
    "อ้างอิง|ดูเพิ่ม|แหล่งข้อมูลอื่น|เชิงอรรถ|หมายเหตุ",
    "ayrıca bakınız|kaynakça|kaynaklar|dış bağlantılar|notlar|konuyla ilgili yayınlar",
    "примітки|посилання|див\\. також|література|джерела",
    "tham khảo|xem thêm|liên kết ngoài|chú thích|ghi chú|đọc thêm|nguồn",
    "参考资料|參考資料|參考文獻|外部链接|外部連結|外部連接|参见|參見|相关条目|相關條目|注释|註釋|注釋|腳註|延伸阅读|延伸閱讀|来源|參考來源",
)
LAST_SECTION = re.compile("|".join(_TITLES), re.I)
