-- The last id that a page of a list examines, if the list has that many. It uses the index alone and reads no record.
SELECT id FROM record_lists
WHERE workspace = ?1 AND kind = ?2 AND list = ?3 AND id < ?4
ORDER BY id DESC LIMIT 1 OFFSET ?5 - 1
