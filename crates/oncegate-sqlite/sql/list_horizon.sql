-- The one down to which a page of a list looks, if there are as many. By the index alone: no record is read for it.
SELECT id FROM record_lists
WHERE workspace = ?1 AND kind = ?2 AND list = ?3 AND id < ?4
ORDER BY id DESC LIMIT 1 OFFSET ?5 - 1
