// A page of each kind, of a server on which there is something of everything.

export const LISTS = ["/claims", "/messages", "/leads", "/actions", "/sagas", "/sends", "/reminders", "/dead-letters"];

// Each with its path, and how its heading begins.
export async function pages(server) {
  const [claim, message, action, send, reminder, letter, instance, lead] = await Promise.all([
    server.first("/api/claims?guard=payment-hook&state=done"),
    server.first("/api/messages?status=sent"),
    server.first("/api/actions?status=completed"),
    server.first("/api/sends?state=unknown"),
    server.first("/api/reminders?state=sent"),
    server.first("/api/sagas/dead-letters?status=open"),
    server.first("/api/sagas?definition=search-import"),
    server.first("/api/leads"),
    // For the first page.
    server.first("/api/claims?state=unknown"),
  ]);
  return [
    ["/", "Overview"],
    ["/decisions", "Decisions"],
    ["/claims", "Claims"],
    [`/claims/${claim.id}?guard=${claim.guard}`, "Claim "],
    ["/messages", "Messages"],
    [`/messages/${message._id}`, "Message "],
    ["/leads", "Leads"],
    [`/leads/${lead._id}`, "Lead "],
    [`/threads/${message.threadId}`, "Thread "],
    ["/actions", "Actions"],
    [`/actions/${action.id}`, "Action "],
    ["/sagas", "Sagas"],
    ["/sagas/search-import", "search-import"],
    [`/sagas/search-import/${instance.correlationId}`, "search-import · "],
    ["/sends", "Sends"],
    [`/sends/${send.id}`, "Send "],
    ["/reminders", "Reminders"],
    [`/reminders/${reminder.id}`, "Reminder "],
    ["/dead-letters", "Dead letters"],
    [`/dead-letters/${letter.id}`, "Dead letter "],
    ["/search", "Search"],
    ["/docs", "The Oncegate book"],
    ["/docs/guides/charge-once", "Charge a card once"],
    ["/docs/operate/dashboard", "The dashboard"],
    ["/docs/reference/api", "API"],
    ["/docs/search?q=claim", "Search the book"],
    ["/docs/openapi", "The API"],
    ["/problems/fenced", ""],
  ];
}
