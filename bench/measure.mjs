// Callers that schedule as fast as they are answered; prints what came of it as one line of JSON.
export async function measure(seconds, callers, schedule) {
  const end = performance.now() + seconds * 1000;
  const micros = [];
  const start = performance.now();
  await Promise.all(
    Array.from({ length: callers }, async (_, caller) => {
      for (let turn = 0; performance.now() < end; turn++) {
        const asked = performance.now();
        await schedule(caller, turn);
        micros.push(Math.round((performance.now() - asked) * 1000));
      }
    }),
  );
  const took = (performance.now() - start) / 1000;
  console.log(JSON.stringify({ seconds: took, micros }));
}
